// Charts as SVG, on paper like all figures of the book: a title that makes a claim, what is drawn, and a caption.
"use strict";

const charts = (() => {
  const WIDTH = 768, PAPER = "#faf9f6", INK = "#22262b", FAINT = "#5f646b", GRID = "#e4e1d9", ALARM = "#c2103a";
  const RANKS = ["#0072b2", "#e69f00", "#7b1e2b", "#45c4bb", "#6d2fd6", "#d03a1a", "#93bf6f", "#8a4a78"];

  const escaped = (text) => String(text).replace(/[&<>"]/g, (letter) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", "\"": "&quot;" }[letter]));
  const text = (x, y, words, { size = 13, color = INK, anchor = "start", weight = "normal", halo = "" } = {}) =>
    `<text ${halo && `paint-order="stroke" stroke="${halo}" stroke-width="4" `} x="${x.toFixed(1)}" y="${y.toFixed(1)}" font-size="${size}" fill="${color}" text-anchor="${anchor}" font-weight="${weight}">${escaped(words)}</text>`;
  const rect = (x, y, width, height, color, edge = PAPER) =>
    `<rect x="${x.toFixed(1)}" y="${y.toFixed(1)}" width="${Math.max(0, width).toFixed(1)}" height="${height.toFixed(1)}" fill="${color}" stroke="${edge}"/>`;
  const line = (x1, y1, x2, y2, color = GRID, width = 1, dash = "") =>
    `<line x1="${x1.toFixed(1)}" y1="${y1.toFixed(1)}" x2="${x2.toFixed(1)}" y2="${y2.toFixed(1)}" stroke="${color}" stroke-width="${width}" stroke-dasharray="${dash}"/>`;
  const isLight = (color) => [1, 3, 5].reduce((sum, at, i) => sum + [0.299, 0.587, 0.114][i] * parseInt(color.slice(at, at + 2), 16), 0) > 140;

  function wrapped(words, most) {
    const lines = [""];
    for (const word of words.split(" ")) {
      if (lines.at(-1) && `${lines.at(-1)} ${word}`.length > most) lines.push("");
      lines[lines.length - 1] += `${lines.at(-1) ? " " : ""}${word}`;
    }
    return lines;
  }

  // The finished figure: draw(top) returns its parts and the y at which they end.
  function figure(title, caption, draw, words = "") {
    const heads = wrapped(title, 72), feet = wrapped(caption, 108);
    const { parts, bottom } = draw(22 + 22 * heads.length);
    const height = bottom + 16 + 18 * feet.length;
    const all = [
      rect(0, 0, WIDTH, height, PAPER), ...heads.map((one, at) => text(12, 26 + 22 * at, one, { size: 17, weight: "bold" })), ...parts,
      ...feet.map((one, at) => text(12, bottom + 20 + 18 * at, one, { color: FAINT })),
    ];
    const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" viewBox="0 0 ${WIDTH} ${height}" font-family="DejaVu Sans, Verdana, sans-serif">${all.join("")}</svg>`;
    return { svg, alt: `${title}. ${caption} ${words}`.trim() };
  }

  // Powers of ten, or about five round values, between two ends.
  function ticks(low, high, log) {
    if (log) {
      const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
      const every = Math.ceil((last - first + 1) / 8);
      return Array.from({ length: last - first + 1 }, (_, at) => 10 ** (first + at)).filter((_, at) => at % every === 0);
    }
    const rough = (high - low) / 5, unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough);
    return Array.from({ length: Math.floor(high / step + 1e-9) - Math.ceil(low / step - 1e-9) + 1 }, (_, at) => (Math.ceil(low / step - 1e-9) + at) * step);
  }

  // Lines in a box. lines: [{name, xs, ys, color, dash}]; x and y: {name, log, words, low, high}; at: an x to mark.
  function curves(box, lines, x, y, at = null, title = "") {
    const { left, top, width, height } = box, right = left + width, end = top + height;
    const all = (axis, key) => [axis.low ?? Math.min(...lines.flatMap((one) => one[key])), axis.high ?? Math.max(...lines.flatMap((one) => one[key]))];
    const scale = (axis, [low, high], from, to) => {
      const bend = axis.log ? Math.log10 : (value) => value;
      return (value) => from + ((bend(value) - bend(low)) / (bend(high) - bend(low))) * (to - from);
    };
    const xs = all(x, "xs"), ys = all(y, "ys");
    const X = scale(x, xs, left, right), Y = scale(y, ys, end, top), parts = [];
    if (title) parts.push(text(left, top - 10, title, { weight: "bold" }));
    for (const tick of ticks(...xs, x.log)) parts.push(line(X(tick), top, X(tick), end), text(X(tick), end + 18, x.words(tick), { anchor: "middle" }));
    for (const tick of ticks(...ys, y.log)) parts.push(line(left, Y(tick), right, Y(tick)), text(left - 6, Y(tick) + 4, y.words(tick), { anchor: "end" }));
    parts.push(text(left + width / 2, end + 38, x.name, { anchor: "middle", color: FAINT }));
    if (at !== null) parts.push(line(X(at), top, X(at), end, INK, 1.5, "4 4"));
    for (const one of lines) {
      const points = one.xs.map((value, i) => `${X(value).toFixed(1)},${Y(one.ys[i]).toFixed(1)}`).join(" ");
      parts.push(`<polyline points="${points}" fill="none" stroke="${one.color}" stroke-width="2.5" stroke-dasharray="${one.dash || ""}"/>`);
    }
    return parts;
  }

  // Names next to their colours, in rows; returns the parts and the y below them.
  function key(entries, y, left = 12) {
    const parts = [];
    let x = left;
    for (const { name, color, dash } of entries) {
      const wide = 40 + 7.9 * name.length;
      if (x + wide > WIDTH - 8) { x = left; y += 20; }
      parts.push(dash === undefined ? rect(x, y - 10, 18, 12, color) : line(x, y - 4, x + 18, y - 4, color, 3, dash), text(x + 24, y, name));
      x += wide;
    }
    return { parts, bottom: y + 12 };
  }

  // Stacked bars. rows: [{name, parts: {part: value}}]; walls: {name: value}, lines that a bar may reach; high: the axis's end.
  function bars(top, rows, colors, words, walls = {}, high = null) {
    const left = 12 + 8 * Math.max(...rows.map((row) => row.name.length)) + 8, right = WIDTH - 90, step = 34;
    const sum = (row) => Object.values(row.parts).reduce((a, b) => a + b, 0);
    const end = high ?? Math.max(...rows.map(sum), ...Object.values(walls)), X = (value) => left + Math.min(1.02, value / end) * (right - left);
    const parts = [], head = Object.keys(walls).length ? 22 : 4;
    const bottom = top + head + step * rows.length, labels = [];
    rows.forEach((row, at) => {
      const y = top + head + step * at;
      let from = 0;
      parts.push(text(left - 8, y + 18, row.name, { anchor: "end" }));
      for (const [name, value] of Object.entries(row.parts)) {
        if (value > 0 && from < end) parts.push(rect(X(from), y, X(from + value) - X(from), 26, colors[name]));
        from += value;
      }
      labels.push(text(X(from) + 6, y + 18, `${words(from)}${from > 1.02 * end ? " →" : ""}`, { halo: PAPER }));
    });
    for (const [name, value] of Object.entries(walls)) {
      if (value <= end) parts.push(line(X(value), top + head - 4, X(value), bottom, INK, 1.5, "5 4"), text(X(value), top + head - 9, name, { anchor: "middle" }));
    }
    parts.push(...labels);
    return { parts, bottom: bottom + 4 };
  }

  // Boxes over time. rows: [{name, note, boxes: [{from, to, color, text}]}]
  function lanes(top, rows, longest, words, left = 84) {
    const right = WIDTH - 100, X = (value) => left + (value / longest) * (right - left), height = Math.max(20, Math.min(30, 340 / rows.length));
    const parts = [], bottom = top + (height + 4) * rows.length;
    rows.forEach(({ name, note = "", boxes }, at) => {
      const y = top + (height + 4) * at;
      parts.push(text(12, y + height / 2 + 5, name), rect(left, y, right - left, height, "#ebe8e0"), text(right + 8, y + height / 2 + 5, note, { size: 12 }));
      for (const { from, to, color, text: words = "" } of boxes) {
        const wide = X(to) - X(from);
        parts.push(rect(X(from), y, wide, height, color));
        if (words !== "" && wide > 8.5 * String(words).length) parts.push(text((X(from) + X(to)) / 2, y + height / 2 + 4, words, { size: 12, anchor: "middle", color: isLight(color) ? INK : PAPER }));
      }
    });
    for (const tick of ticks(0, longest, false)) parts.push(text(X(tick), bottom + 14, words(tick), { anchor: "middle", color: FAINT, size: 12 }));
    return { parts, bottom: bottom + 22 };
  }

  const sentence = (title, words) => figure(title, words, (top) => ({ parts: [], bottom: top }));

  return { WIDTH, INK, ALARM, RANKS, figure, curves, key, bars, lanes, sentence, text };
})();
if (typeof module !== "undefined") module.exports = charts;
