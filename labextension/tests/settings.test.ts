import { readFileSync } from 'fs';
import { join } from 'path';

import { DEFAULTS, read } from '../src/settings';

const schema = JSON.parse(
  readFileSync(join(__dirname, '../schema/plugin.json'), 'utf-8')
) as { properties: Record<string, { default: unknown }> };

test('the defaults are those of the schema', () => {
  const defaults = Object.fromEntries(
    Object.entries(schema.properties).map(([name, property]) => [name, property.default])
  );

  expect(DEFAULTS).toEqual(defaults);
});

test('without a registry all settings have their default', () => {
  expect(read(null)).toEqual(DEFAULTS);
});
