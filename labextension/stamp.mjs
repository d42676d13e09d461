// Writes into the build which sources it was made from, so that a test can tell if it is stale.
// A build's own bytes differ from one machine to the next.

import { createHash } from 'node:crypto';
import { readFileSync, readdirSync, writeFileSync } from 'node:fs';

const folders = ['src', 'style', 'schema'];
const files = folders.flatMap(folder => readdirSync(folder).map(name => `${folder}/${name}`));
const hash = createHash('sha256');
for (const file of [...files, 'package.json'].sort()) {
  hash.update(`${file}\0`);
  hash.update(readFileSync(file));
}
writeFileSync('built/sources.sha256', `${hash.digest('hex')}\n`);
