/** The user's settings, with the defaults of `schema/plugin.json`. */

import type { ISettingRegistry } from '@jupyterlab/settingregistry';

export interface ISettings {
  readonly guard: boolean;
  readonly notifyFinished: boolean;
  readonly notifyFailed: boolean;
  readonly notifyAlert: boolean;
  readonly updateSeconds: number;
  readonly confirm: 'never' | 'stop';
  readonly saveNotebook: boolean;
}

export const DEFAULTS: ISettings = {
  guard: true,
  notifyFinished: true,
  notifyFailed: true,
  notifyAlert: true,
  updateSeconds: 1,
  confirm: 'never',
  saveNotebook: true
};

/** Settings as the registry has them; what is missing has its default. */
export function read(settings: ISettingRegistry.ISettings | null): ISettings {
  return { ...DEFAULTS, ...(settings?.composite as Partial<ISettings> | undefined) };
}
