// The search: sections that have all words, the best first, each with an excerpt.
"use strict";

const box = document.querySelector("main input[type=search]");
const found = document.getElementById("found");
const MOST = 40; // results that are shown

const words = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);
// Where a word begins with what is asked: "ring" is in "rings" and "ring_all_reduce", but not in "during".
const begins = (asked) => new RegExp(`(?<![a-z0-9])(${asked.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})`, "gi");

// How well a section fits: 0 where a word is missing; a word in the title counts most.
function score([, , title, text], asked) {
  let sum = 0;
  for (const word of asked) {
    const inTitle = title.search(begins([word])) >= 0, times = text.match(begins([word]))?.length ?? 0;
    if (!inTitle && !times) return 0;
    sum += 20 * inTitle + Math.min(times, 8);
  }
  return sum;
}

// The text around the first place where a word is found, with all words marked.
function excerpt(text, asked) {
  const start = text.lastIndexOf(" ", Math.max(0, text.search(begins(asked)) - 70)) + 1;
  const pieces = text.slice(start, start + 240).split(begins(asked));
  return [start ? "… " : "", ...pieces.map((piece, at) => at % 2 ? make("mark", { textContent: piece }) : piece), start + 240 < text.length ? " …" : ""];
}

async function search() {
  const asked = words(box.value), index = await book.index;
  const fits = asked.length ? index.map((one) => [score(one, asked), one]).filter(([points]) => points) : [];
  fits.sort((a, b) => b[0] - a[0]);
  const rows = fits.slice(0, MOST).map(([, one]) => {
    const [page, anchor, title, text] = one;
    return make("li", {}, make("a", { href: `${page}.html${anchor ? `#${anchor}` : ""}`, textContent: title }), make("p", {}, ...excerpt(text, asked)));
  });
  document.getElementById("how-many").textContent = !asked.length ? "" : fits.length === 0 ? "No section has all of these words."
    : fits.length === 1 ? "1 section" : `${fits.length} sections${fits.length > MOST ? `, of which the best ${MOST} are shown` : ""}`;
  found.replaceChildren(...rows);
}

box.value = new URLSearchParams(location.search).get("q") || "";
box.addEventListener("input", search);
box.form.addEventListener("submit", (event) => { event.preventDefault(); search(); });
search();
box.focus();
