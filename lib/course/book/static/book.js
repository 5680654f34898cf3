// What the book does in the browser: answers wait for a guess, figures move.
// Without this script everything is there to be read: answers folded, figures still.
"use strict";

const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

// --- Predict ---------------------------------------------------------------------------------------------------------

const guesses = {
  place: `guesses ${location.pathname}`,
  all() {
    try { return JSON.parse(localStorage.getItem(this.place)) || {}; } catch { return {}; } // storage may be forbidden
  },
  keep(name, guess) {
    try { localStorage.setItem(this.place, JSON.stringify({ ...this.all(), [name]: guess })); } catch { }
  },
};

// A form for a guess, with a field for each of `names`; `told` gets them, now if they were made on an earlier visit.
function ask(names, question, told) {
  const inputs = names.map(() => make("input", { type: "text", required: true, pattern: ".*\\S.*", autocomplete: "off" }));
  const rows = inputs.length === 1 ? [make("label", {}, `${question} `, inputs[0])]
    : [make("fieldset", {}, make("legend", { textContent: question }),
      ...inputs.map((input, place) => make("label", {}, `${names[place]} `, input)))];
  const form = make("form", { className: "guess" }, ...rows, make("button", { textContent: "Lock it in" }));
  const lock = (guess) => {
    form.replaceChildren(make("p", { textContent: `You guessed: ${guess.join(", ")}`, tabIndex: -1 }));
    told(guess);
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const guess = inputs.map((input) => input.value.trim());
    guesses.keep(names, guess);
    lock(guess);
    form.firstChild.focus();
  });
  const before = guesses.all()[names];
  if (before) lock(before);
  return form;
}

// What a cell printed has a place for each guess: "you ‹my_rows›, formula 75".
function say(name, guess, output) {
  const texts = document.createTreeWalker(output, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(`‹${name}›`, () => guess);
}

// What stands below a cell or a text, up to the next text: outputs, and figures that move.
function* shownBelow(element) {
  for (let next = element.nextElementSibling; next?.matches(".cell, .moving"); next = next.nextElementSibling) {
    yield* next.matches(".moving") ? [next] : next.querySelectorAll(":scope > .cell_output");
  }
}

// Until their guesses are made, answers are not there, nor what the cells show that tell them: those just below, those
// that print a guess, and those below a text that speaks of the prediction above it.
function lockPredictions() {
  const waiting = new Map(); // what is hidden -> names of the guesses that it waits for
  const hold = (names, shown) => {
    for (const one of shown) {
      if (!one.hidden && one.matches(".cell_output")) {
        one.before(make("p", { className: "locked", textContent: "What this cell printed is shown after your guess above." }));
      }
      one.hidden = true;
      waiting.set(one, new Set([...(waiting.get(one) || []), ...names]));
    }
  };
  const release = (names, answer, guess) => {
    if (answer) { answer.hidden = false; answer.open = true; }
    for (const [one, awaited] of waiting) {
      names.forEach((name, place) => { if (awaited.delete(name)) say(name, guess[place], one); });
      if (awaited.size > 0 || !one.hidden) continue;
      one.hidden = false;
      if (one.previousElementSibling.matches(".locked")) one.previousElementSibling.remove();
    }
  };
  for (const cell of document.querySelectorAll("[class*=tag_waits-]")) {
    const names = [...cell.classList].filter((one) => one.startsWith("tag_waits-")).map((one) => one.slice(10));
    hold(names, [...cell.querySelectorAll(":scope > .cell_output"), ...shownBelow(cell)]);
  }
  const asked = [];
  for (const one of document.querySelectorAll(".bd-article :is(.predict, .tag_predict, .predicted)")) {
    if (one.matches(".predicted")) {
      hold(asked.at(-1).names, shownBelow(one));
    } else if (one.matches(".tag_predict")) {
      const lines = [...one.textContent.matchAll(/^(\w+(?:, \w+)*) = (?:.*# Predict: |None *# your prediction[,:]? *)(.*)$/gm)];
      const names = lines.map((line) => line[1]).join(", ");
      const what = lines.map((line) => line[2]).join("; ");
      const answer = one.previousElementSibling.matches(".predict") ? one.previousElementSibling : null;
      const question = `Your guess: ${what.replace(/^type (your )?/, "")}`;
      asked.push({ names: names.split(", "), question, answer, below: one, put: (form) => one.insertBefore(form, one.querySelector(":scope > .locked, :scope > .cell_output")) });
    } else {
      one.hidden = true;
      if (one.nextElementSibling?.matches(".tag_predict")) continue;
      const names = [`answer ${asked.length}`];
      asked.push({ names, question: "Your guess", answer: one, below: one, put: (form) => one.before(form) });
    }
  }
  for (const { names, below } of asked) hold(names, shownBelow(below));
  for (const { names, question, answer, put } of asked) put(ask(names, question, (guess) => release(names, answer, guess)));
}

// --- figures that move -------------------------------------------------------------------------------------------------

const here = document.currentScript.src.replace(/[^/]*$/, ""); // a script next to this one can be had from a file, too
const arrived = new Map();
const book = { figure: (name, data) => arrived.get(name)(data) };

function bring(name) {
  return new Promise((resolve, reject) => {
    arrived.set(name, resolve);
    document.head.append(make("script", { src: `${here}figures/${name}.js`, onerror: reject }));
  });
}

async function unpacked(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// A slider or a menu; `moved` is called when it has moved. Its place is control.place().
function controlOf({ name, stops, start, menu }, moved) {
  const input = menu ? make("select", {}, ...stops.map((stop) => make("option", { textContent: stop })))
    : make("input", { type: "range", min: 0, max: stops.length - 1, step: 1 });
  const at = menu ? "selectedIndex" : "valueAsNumber", said = menu ? [] : [make("output")];
  const tell = () => {
    for (const one of said) one.textContent = stops[input[at]];
    if (!menu) input.setAttribute("aria-valuetext", stops[input[at]]);
  };
  const go = (place) => { input[at] = place; tell(); };
  go(start);
  input.addEventListener("input", () => { tell(); moved(); });
  const row = make("label", {}, make("span", { textContent: name.replaceAll("_", " ") }), input, ...said);
  return { row, place: () => input[at], go: (place) => { go(place); moved(); }, stops };
}

// Play and pause; a step at a time for who wants little motion. Nothing moves before it is asked to.
function player(time, seconds, running) {
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const button = make("button", { type: "button" });
  let timer = null;
  const last = time.stops.length - 1;
  const step = () => time.go(time.place() >= last ? 0 : time.place() + 1);
  const name = () => { button.textContent = timer ? "Pause" : calm.matches ? "Next step" : "Play"; };
  const stop = () => { clearInterval(timer); timer = null; running(null); name(); };
  button.addEventListener("click", () => {
    if (timer) { stop(); return; }
    step();
    if (calm.matches) return;
    timer = setInterval(() => { step(); if (time.place() === last) stop(); }, 1000 * seconds);
    running(timer);
    name();
  });
  calm.addEventListener("change", stop);
  name();
  return button;
}

async function move(holder) {
  const { controls, alts, packed, seconds } = await bring(holder.dataset.figure);
  const { shared, figures } = await unpacked(packed);
  const image = holder.querySelector("img") || holder.previousElementSibling.querySelector("img");
  const heard = make("p", { className: "visually-hidden", role: "status" });
  const show = () => {
    const at = handles.reduce((sum, one) => sum * one.stops.length + one.place(), 0);
    const svg = figures[at].replace(">", `><defs>${shared}</defs>`);
    image.src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
    image.alt = alts[at];
    if (!playing) heard.textContent = alts[at];
  };
  let playing = null;
  const handles = controls.map((one) => controlOf(one, () => show()));
  const box = make("div", { className: "controls" }, ...handles.map((one) => one.row), heard);
  if (seconds) box.prepend(player(handles[0], seconds, (timer) => { playing = timer; }));
  holder.append(box);
}

// Paper is light.
let theme = null;
addEventListener("beforeprint", () => { theme = document.documentElement.dataset.theme; document.documentElement.dataset.theme = "light"; });
addEventListener("afterprint", () => { document.documentElement.dataset.theme = theme; });

// What is wider than its place, once it is seen, can be scrolled with the keyboard.
const seen = new ResizeObserver((them) => {
  for (const { target } of them) if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
});

for (const holder of document.querySelectorAll(".moving")) move(holder);
lockPredictions();
document.querySelectorAll(".formula, .bd-article pre").forEach((one) => seen.observe(one));
