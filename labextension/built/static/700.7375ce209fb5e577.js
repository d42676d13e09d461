"use strict";(self.rspackChunkrapidfire_jupyter=self.rspackChunkrapidfire_jupyter||[]).push([[700],{646(r,e,t){var o=t(601),n=t.n(o),a=t(314),i=(t.n(a))()(n());i.push([r.id,`/* Sidebar, status bar and guard. Colours are JupyterLab's, but for the runs' own. */

:root {
  --rf-run-0: #6987f0;
  --rf-run-1: #ff5a00;
  --rf-run-2: #2d001e;
  --rf-run-3: #969678;
  --rf-run-4: #000069;
  --rf-run-5: #780f00;
  --rf-run-6: #8700ff;
  --rf-run-7: #964b87;
}

[data-jp-theme-light='false'] {
  --rf-run-0: #694bff;
  --rf-run-1: #f00f0f;
  --rf-run-2: #00fff0;
  --rf-run-3: #d2ffa5;
  --rf-run-4: #b487f0;
  --rf-run-5: #c33c4b;
  --rf-run-6: #ffc300;
  --rf-run-7: #a54b87;
}

.rf-Sidebar {
  overflow-y: auto;
  background: var(--jp-layout-color1);
  color: var(--jp-ui-font-color1);
  font-family: var(--jp-ui-font-family);
  font-size: var(--jp-ui-font-size1);
}

.rf-Empty {
  padding: 16px;
  color: var(--jp-ui-font-color2);
  line-height: 1.5;
}

.rf-Experiment {
  padding: 12px 12px 8px;
  border-bottom: 1px solid var(--jp-border-color2);
}

.rf-Experiment header {
  display: flex;
  align-items: center;
  gap: 4px;
}

.rf-Experiment h3 {
  flex: 1;
  min-width: 0;
  margin: 0;
  overflow: hidden;
  font-size: var(--jp-ui-font-size2);
  font-weight: 600;
  text-overflow: ellipsis;
  white-space: nowrap;
}

.rf-Where,
.rf-Summary,
.rf-Reason {
  margin: 0 0 6px;
  overflow: hidden;
  color: var(--jp-ui-font-color2);
  font-size: var(--jp-ui-font-size0);
  font-variant-numeric: tabular-nums;
  text-overflow: ellipsis;
}

.rf-Where {
  white-space: nowrap;
}

.rf-Reason {
  color: var(--jp-warn-color0, var(--jp-warn-color1));
}

.rf-Experiment progress {
  display: block;
  width: 100%;
  height: 4px;
  border: 0;
  border-radius: 2px;
  appearance: none;
  background: var(--jp-layout-color3);
  overflow: hidden;
}

.rf-Experiment progress::-webkit-progress-bar {
  background: var(--jp-layout-color3);
}

.rf-Experiment progress::-webkit-progress-value {
  background: var(--jp-brand-color1);
}

.rf-Experiment progress::-moz-progress-bar {
  background: var(--jp-brand-color1);
}

.rf-Summary {
  margin-top: 4px;
}

.rf-Experiment ul {
  margin: 0;
  padding: 0;
  list-style: none;
}

.rf-Run {
  padding: 4px 0;
}

.rf-Row {
  display: flex;
  align-items: center;
  gap: 6px;
  min-height: 20px;
}

.rf-Dot {
  flex: none;
  width: 8px;
  height: 8px;
  border-radius: 50%;
}

.rf-Id {
  flex: none;
  min-width: 2ch;
  color: var(--jp-ui-font-color2);
  font-variant-numeric: tabular-nums;
  text-align: right;
}

.rf-Name {
  flex: 1;
  min-width: 0;
  overflow: hidden;
  text-overflow: ellipsis;
  white-space: nowrap;
}

.rf-Loss {
  flex: none;
  font-variant-numeric: tabular-nums;
}

.rf-Run progress {
  width: auto;
  height: 3px;
  margin: 2px 0 2px 14px;
}

.rf-Status {
  flex: 1;
  min-width: 0;
  margin-left: 14px;
  overflow: hidden;
  color: var(--jp-ui-font-color2);
  font-size: var(--jp-ui-font-size0);
  font-variant-numeric: tabular-nums;
  text-overflow: ellipsis;
  white-space: nowrap;
}

.rf-mod-failed .rf-Status,
.rf-Error {
  color: var(--jp-error-color1);
}

.rf-Error {
  display: -webkit-box;
  max-height: 3.9em;
  margin: 0 0 4px 14px;
  overflow: hidden;
  font-size: var(--jp-ui-font-size0);
  line-height: 1.3;
  overflow-wrap: anywhere;
  -webkit-box-orient: vertical;
  -webkit-line-clamp: 3;
}

.rf-Sidebar button {
  display: flex;
  flex: none;
  align-items: center;
  justify-content: center;
  width: 24px;
  height: 20px;
  padding: 0;
  border: 0;
  border-radius: 2px;
  background: none;
  color: var(--jp-ui-font-color2);
  font: inherit;
  line-height: 1;
  cursor: pointer;
}

.rf-Sidebar button:hover {
  background: var(--jp-layout-color2);
  color: var(--jp-ui-font-color0);
}

.rf-Sidebar button:focus-visible,
.rf-StatusItem button:focus-visible {
  outline: 2px solid var(--jp-brand-color1);
  outline-offset: -1px;
}

.rf-Sidebar button:disabled {
  opacity: 0.4;
  cursor: default;
}

.rf-StatusItem button {
  height: 100%;
  padding: 0 4px;
  border: 0;
  background: none;
  color: inherit;
  font: inherit;
  font-variant-numeric: tabular-nums;
  cursor: pointer;
}

.rf-StatusItem button:hover {
  background: var(--jp-layout-color3);
}

.rf-Panel {
  overflow: auto;
  padding: 8px;
  background: var(--jp-layout-color0);
}

.rf-Guard p {
  max-width: 60ch;
  margin: 0 0 8px;
  overflow-wrap: anywhere;
}
`,""]),t.d(e,{},{A:i})},314(r){r.exports=function(r){var e=[];return e.toString=function(){return this.map(function(e){var t="",o=void 0!==e[5];return e[4]&&(t+="@supports (".concat(e[4],") {")),e[2]&&(t+="@media ".concat(e[2]," {")),o&&(t+="@layer".concat(e[5].length>0?" ".concat(e[5]):""," {")),t+=r(e),o&&(t+="}"),e[2]&&(t+="}"),e[4]&&(t+="}"),t}).join("")},e.i=function(r,t,o,n,a){"string"==typeof r&&(r=[[null,r,void 0]]);var i={};if(o)for(var f=0;f<this.length;f++){var u=this[f][0];null!=u&&(i[u]=!0)}for(var s=0;s<r.length;s++){var p=[].concat(r[s]);o&&i[p[0]]||(void 0!==a&&(void 0===p[5]||(p[1]="@layer".concat(p[5].length>0?" ".concat(p[5]):""," {").concat(p[1],"}")),p[5]=a),t&&(p[2]&&(p[1]="@media ".concat(p[2]," {").concat(p[1],"}")),p[2]=t),n&&(p[4]?(p[1]="@supports (".concat(p[4],") {").concat(p[1],"}"),p[4]=n):p[4]="".concat(n)),e.push(p))}},e}},601(r){r.exports=function(r){return r[1]}},72(r){var e=[];function t(r){for(var t=-1,o=0;o<e.length;o++)if(e[o].identifier===r){t=o;break}return t}function o(r,o){for(var n={},a=[],i=0;i<r.length;i++){var f=r[i],u=o.base?f[0]+o.base:f[0],s=n[u]||0,p="".concat(u," ").concat(s);n[u]=s+1;var l=t(p),c={css:f[1],media:f[2],sourceMap:f[3],supports:f[4],layer:f[5]};if(-1!==l)e[l].references++,e[l].updater(c);else{var d=function(r,e){var t=e.domAPI(e);return t.update(r),function(e){e?(e.css!==r.css||e.media!==r.media||e.sourceMap!==r.sourceMap||e.supports!==r.supports||e.layer!==r.layer)&&t.update(r=e):t.remove()}}(c,o);o.byIndex=i,e.splice(i,0,{identifier:p,updater:d,references:1})}a.push(p)}return a}r.exports=function(r,n){var a=o(r=r||[],n=n||{});return function(r){r=r||[];for(var i=0;i<a.length;i++){var f=t(a[i]);e[f].references--}for(var u=o(r,n),s=0;s<a.length;s++){var p=t(a[s]);0===e[p].references&&(e[p].updater(),e.splice(p,1))}a=u}}},659(r){var e={};r.exports=function(r,t){var o=function(r){if(void 0===e[r]){var t=document.querySelector(r);if(window.HTMLIFrameElement&&t instanceof window.HTMLIFrameElement)try{t=t.contentDocument.head}catch(r){t=null}e[r]=t}return e[r]}(r);if(!o)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");o.appendChild(t)}},540(r){r.exports=function(r){var e=document.createElement("style");return r.setAttributes(e,r.attributes),r.insert(e,r.options),e}},56(r,e,t){r.exports=function(r){var e=t.nc;e&&r.setAttribute("nonce",e)}},206(r){r.exports=function(r){if("u"<typeof document)return{update:function(){},remove:function(){}};var e=r.insertStyleElement(r);return{update:function(t){var o,n,a;o="",t.supports&&(o+="@supports (".concat(t.supports,") {")),t.media&&(o+="@media ".concat(t.media," {")),(n=void 0!==t.layer)&&(o+="@layer".concat(t.layer.length>0?" ".concat(t.layer):""," {")),o+=t.css,n&&(o+="}"),t.media&&(o+="}"),t.supports&&(o+="}"),(a=t.sourceMap)&&"u">typeof btoa&&(o+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(a))))," */")),r.styleTagTransform(o,e,r.options)},remove:function(){var r;null===(r=e).parentNode||r.parentNode.removeChild(r)}}}},113(r){r.exports=function(r,e){if(e.styleSheet)e.styleSheet.cssText=r;else{for(;e.firstChild;)e.removeChild(e.firstChild);e.appendChild(document.createTextNode(r))}}},959(r,e,t){var o=t(72),n=t.n(o),a=t(206),i=t.n(a),f=t(659),u=t.n(f),s=t(56),p=t.n(s),l=t(540),c=t.n(l),d=t(113),v=t.n(d),h=t(646),m={};m.styleTagTransform=v(),m.setAttributes=p(),m.insert=u().bind(null,"head"),m.domAPI=i(),m.insertStyleElement=c(),n()(h.A,m),h.A&&h.A.locals&&h.A.locals}}]);