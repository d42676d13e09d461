/** The icon of sidebar and panels: three curves, one still rising. */

import { LabIcon } from '@jupyterlab/ui-components';

export const rapidfireIcon = new LabIcon({
  name: 'rapidfire:runs',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" width="16">
  <g class="jp-icon3" style="fill:none" stroke="#616161" stroke-width="2"
    stroke-linecap="round" stroke-linejoin="round">
    <path d="M4 3v17h17"/>
    <path d="M7 6c2 8 6 10.5 14 10.5"/>
    <path d="M7 6c3 4.5 6 6 9 6"/>
    <path d="M7 6c2 1.5 3.5 2 5 2"/>
  </g>
</svg>`
});
