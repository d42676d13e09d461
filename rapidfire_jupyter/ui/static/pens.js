// @ts-check
/* Two ways to put a drawing down: on a canvas, and as SVG text. Charts are drawn through either, so that what is exported is what is seen. */

/**
 * A pen for a canvas, in CSS pixels.
 * @param {CanvasRenderingContext2D} context @param {string} font
 * @returns {Pen}
 */
function canvasPen(context, font) {
  const use = (/** @type {Ink} */ ink) => {
    context.globalAlpha = ink.alpha ?? 1;
    context.strokeStyle = context.fillStyle = ink.color;
    context.lineWidth = ink.width ?? 1;
    context.setLineDash(ink.dash || []);
  };
  return {
    line(x1, y1, x2, y2, ink) {
      use(ink);
      context.beginPath();
      context.moveTo(x1, y1);
      context.lineTo(x2, y2);
      context.stroke();
    },
    path(points, count, ink) {
      use(ink);
      context.lineJoin = "round";
      context.beginPath();
      let down = false;
      for (let i = 0; i < count; i += 1) {
        const [x, y] = [points[2 * i], points[2 * i + 1]];
        if (Number.isNaN(y)) down = false;
        else if (down) context.lineTo(x, y);
        else {
          context.moveTo(x, y);
          context.lineTo(x + 0.01, y); // a point alone is seen, too
          down = true;
        }
      }
      context.stroke();
    },
    box(x, y, w, hgt, ink) {
      use(ink);
      context.fillRect(x, y, w, hgt);
    },
    text(text, x, y, ink) {
      use(ink);
      context.font = `${ink.bold ? "600 " : ""}${ink.size ?? 11}px ${font}`;
      context.textAlign = ink.align ?? "left";
      context.textBaseline = "middle";
      context.fillText(text, x, y);
    },
    clip(x, y, w, hgt, draw) {
      context.save();
      context.beginPath();
      context.rect(x, y, w, hgt);
      context.clip();
      draw();
      context.restore();
    },
  };
}

/**
 * A pen that writes SVG; `done` gives the whole document.
 * @param {number} width @param {number} height @param {Theme} theme
 */
function svgPen(width, height, theme) {
  /** @type {string[]} */
  const parts = [];
  let clips = 0;
  const n = (/** @type {number} */ value) => String(Math.round(value * 100) / 100);
  const text = (/** @type {string} */ value) =>
    value
      .replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`)
      .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd");
  const stroke = (/** @type {Ink} */ ink) =>
    `fill="none" stroke="${text(ink.color)}" stroke-width="${ink.width ?? 1}" stroke-opacity="${ink.alpha ?? 1}"${ink.dash ? ` stroke-dasharray="${ink.dash.join(" ")}"` : ""}`;
  /** @type {Pen & {done: () => string}} */
  const pen = {
    line: (x1, y1, x2, y2, ink) => void parts.push(`<path d="M${n(x1)} ${n(y1)}L${n(x2)} ${n(y2)}" ${stroke(ink)}/>`),
    path(points, count, ink) {
      let [d, down] = ["", false];
      for (let i = 0; i < count; i += 1) {
        const y = points[2 * i + 1];
        if (!Number.isNaN(y)) d += `${down ? "L" : "M"}${n(points[2 * i])} ${n(y)}`;
        down = !Number.isNaN(y);
      }
      if (d) parts.push(`<path d="${d}" stroke-linejoin="round" ${stroke(ink)}/>`);
    },
    box: (x, y, w, hgt, ink) =>
      void parts.push(
        `<rect x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(hgt)}" fill="${text(ink.color)}" fill-opacity="${ink.alpha ?? 1}"/>`,
      ),
    text(value, x, y, ink) {
      const anchor = { left: "start", center: "middle", right: "end" }[ink.align ?? "left"];
      parts.push(
        `<text x="${n(x)}" y="${n(y)}" dominant-baseline="central" text-anchor="${anchor}" font-size="${ink.size ?? 11}"${ink.bold ? ' font-weight="600"' : ""} fill="${text(ink.color)}">${text(value)}</text>`,
      );
    },
    clip(x, y, w, hgt, draw) {
      clips += 1;
      parts.push(
        `<clipPath id="c${clips}"><rect x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(hgt)}"/></clipPath><g clip-path="url(#c${clips})">`,
      );
      draw();
      parts.push("</g>");
    },
    done: () =>
      `<svg xmlns="${SVG}" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" font-family="${text(theme.font)}"><rect width="${width}" height="${height}" fill="${text(theme.back)}"/>${parts.join("")}</svg>`,
  };
  return pen;
}
