// @ts-check
/* Colours. The same palettes as ui/colors.py; each colour has 3:1 against its background, and they differ for the colour-blind. */

const LIGHT = ["#6987F0", "#FF5A00", "#2D001E", "#969678", "#000069", "#780F00", "#8700FF", "#964B87"];
const DARK = ["#694BFF", "#F00F0F", "#00FFF0", "#D2FFA5", "#B487F0", "#C33C4B", "#FFC300", "#A54B87"];

/** Whether the page around the panel is dark: by JupyterLab's mark, VS Code's, the background, or the system's wish. */
function isDark(/** @type {HTMLElement} */ element) {
  const mark = document.body.getAttribute("data-jp-theme-light");
  if (mark !== null) return mark === "false";
  if (document.body.matches(".vscode-dark, .vscode-high-contrast")) return true;
  if (document.body.matches(".vscode-light")) return false;
  for (let at = element.parentElement; at; at = at.parentElement) {
    const numbers = getComputedStyle(at)
      .backgroundColor.match(/[\d.]+/g)
      ?.map(Number);
    if (numbers && (numbers.length < 4 || numbers[3] > 0.5))
      return 0.3 * numbers[0] + 0.6 * numbers[1] + 0.1 * numbers[2] < 128;
  }
  return false;
}

/**
 * The colours to draw with, as the page's style sheet has them.
 * @param {HTMLElement} root
 * @returns {Theme}
 */
function readTheme(root) {
  const style = getComputedStyle(root);
  const color = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  const dark = root.dataset.dark === "true";
  return {
    dark,
    text: color("--rf-text"),
    faint: color("--rf-faint"),
    grid: color("--rf-line"),
    back: color("--rf-back"),
    grey: dark ? "#8a8a8a" : "#8c8c8c",
    colors: dark ? DARK : LIGHT,
    font: style.fontFamily || "sans-serif",
    error: color("--rf-error"),
    accent: color("--rf-accent"),
  };
}

/** Colour of a place in the palette; grey for -1. */
function slotColor(/** @type {Theme} */ theme, /** @type {number} */ slot) {
  return slot < 0 ? theme.grey : theme.colors[slot % theme.colors.length];
}

/** Calls back when the page changes between dark and light; gives the function that ends it. */
function watchTheme(/** @type {() => void} */ changed) {
  const observer = new MutationObserver(changed);
  observer.observe(document.body, {
    attributes: true,
    attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"],
  });
  return () => observer.disconnect();
}
