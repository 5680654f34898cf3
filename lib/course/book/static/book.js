// What the book does in the browser: predictions take a guess, runs are replayed, sliders are moved.
// Without this script everything is there to be read: answers folded, figures still.
"use strict";

const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

// --- Predict ---------------------------------------------------------------------------------------------------------

// A lab's guesses are kept together, because a later section may print an earlier one's. Storage may be forbidden.
const guesses = {
  place: `guesses of ${location.pathname.replace(/.*\//, "").replace(/[-.].*/, "")}`,
  all() {
    try { return JSON.parse(localStorage.getItem(this.place)) || {}; } catch { return {}; }
  },
  keep(name, guess) {
    try { localStorage.setItem(this.place, JSON.stringify({ ...this.all(), [name]: guess })); } catch { }
  },
  of(name) { // the guess for one name; null where there is none
    for (const [names, guess] of Object.entries(this.all())) {
      const at = names.split(",").indexOf(name);
      if (at >= 0 && guess.length) return guess[at];
    }
    return null;
  },
};

// A prediction: a form with a field for each of `names`. `told` gets the guess, or [] from the reader who asked to be shown.
class Prediction {
  constructor(names, question, told) {
    this.told = told;
    this.names = names;
    this.fields = names.map(() => make("input", { type: "text", required: true, pattern: ".*\\S.*", autocomplete: "off" }));
    const rows = names.length === 1 ? [make("label", {}, `${question} `, this.fields[0])]
      : [make("fieldset", {}, make("legend", { textContent: question }),
        ...this.fields.map((field, at) => make("label", {}, `${names[at]} `, field)))];
    const show = make("button", { type: "button", className: "show", textContent: "Show me" });
    show.addEventListener("click", () => this.settle([]));
    this.form = make("form", { className: "guess" }, ...rows, make("button", { textContent: "Check my guess" }), show);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.settle(this.fields.map((field) => field.value.trim()));
    });
  }
  settle(guess, again = false) {
    if (!again) guesses.keep(this.names, guess);
    const said = guess.length ? `You guessed: ${guess.join(", ")}` : "Shown without a guess.";
    this.form.replaceChildren(make("p", { textContent: said, tabIndex: -1 }));
    this.told(guess);
    if (!again) this.form.firstChild.focus();
  }
  remember() {
    const before = guesses.all()[this.names];
    if (before) this.settle(before, true);
  }
}

// What a cell printed has a slot for each guess, "you ‹my_rows›, formula 75". Without a guess the words about it go, too.
function say(name, guess, output) {
  const texts = document.createTreeWalker(output, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    if (guess === null) text.data = text.data.replace(new RegExp(`you [^,\\n]*‹${name}›[^,\\n]*, `), "");
    text.data = text.data.replaceAll(`‹${name}›`, () => guess ?? "–");
  }
}

// What stands below a cell or a text, up to the next text: outputs, and figures that move.
function* shownBelow(element) {
  for (let next = element.nextElementSibling; next?.matches(".cell, .moving"); next = next.nextElementSibling) {
    yield* next.matches(".moving") ? [next] : next.querySelectorAll(":scope > .cell_output");
  }
}

// Until there is a guess, or the reader asks to be shown, answers are hidden, and so are the outputs that tell them: those
// just below, those that print a guess, and those below a text that speaks of the prediction above it.
function lockPredictions() {
  const waiting = new Map(); // what is hidden -> names of the guesses that it waits for
  const asks = new Map(); // name of a guess -> its Prediction
  const hold = (names, shown) => {
    for (const one of shown) {
      if (!one.hidden && one.matches(".cell_output")) {
        const show = make("button", { type: "button", className: "show", textContent: "Show me" });
        show.addEventListener("click", () => waiting.get(one).forEach((name) => asks.get(name).settle([])));
        one.before(make("p", { className: "locked" }, "What do you expect here? The output is shown after your guess above. ", show));
      }
      one.hidden = true;
      waiting.set(one, new Set([...(waiting.get(one) || []), ...names]));
    }
  };
  const release = (names, answer, guess) => {
    if (answer) { answer.hidden = false; answer.open = true; }
    for (const [one, awaited] of waiting) {
      names.forEach((name, at) => { if (awaited.delete(name)) say(name, guess[at] ?? null, one); });
      if (awaited.size > 0 || !one.hidden) continue;
      one.hidden = false;
      if (one.previousElementSibling?.matches(".locked")) one.previousElementSibling.remove();
    }
  };
  const asked = [];
  for (const one of document.querySelectorAll("article :is(.predict, .tag_predict, .predicted)")) {
    if (one.matches(".predicted")) {
      if (asked.length) asked.at(-1).below.push(one);
    } else if (one.matches(".tag_predict")) {
      const lines = [...one.textContent.matchAll(/^(\w+(?:, \w+)*) = (?:.*# Predict: |None *# your prediction[,:]? *)(.*)$/gm)];
      const names = lines.flatMap((line) => line[1].split(", "));
      const question = `Your guess: ${lines.map((line) => line[2]).join("; ").replace(/^type (your )?/, "")}`;
      const answer = one.previousElementSibling?.matches(".predict") ? one.previousElementSibling : null;
      asked.push({ names, question, answer, below: [one], put: (form) => one.insertBefore(form, one.querySelector(":scope > .locked, :scope > .cell_output")) });
    } else {
      one.hidden = true;
      if (one.nextElementSibling?.matches(".tag_predict")) continue;
      asked.push({ names: [`answer ${asked.length} of ${document.title}`], question: "Your guess", answer: one, below: [one], put: (form) => one.before(form) });
    }
  }
  const here = new Set(asked.flatMap((one) => one.names));
  for (const cell of document.querySelectorAll("[class*=tag_waits-]")) {
    const names = [...cell.classList].filter((one) => one.startsWith("tag_waits-")).map((one) => one.slice(10));
    const outputs = [...cell.querySelectorAll(":scope > .cell_output")];
    const awaited = names.filter((name) => here.has(name));
    if (awaited.length) hold(awaited, [...outputs, ...shownBelow(cell)]);
    for (const name of names.filter((one) => !here.has(one))) outputs.forEach((one) => say(name, guesses.of(name), one));
  }
  for (const { names, below } of asked) below.forEach((one) => hold(names, shownBelow(one)));
  for (const { names, question, answer, put } of asked) {
    const prediction = new Prediction(names, question, (guess) => release(names, answer, guess));
    names.forEach((name) => asks.set(name, prediction));
    put(prediction.form);
    prediction.remember();
  }
}

// --- packed data -------------------------------------------------------------------------------------------------------

const scripts = document.currentScript.src.replace(/[^/]*$/, ""); // a script next to this one can be had from a file, too
const arrived = new Map();
const book = {
  data: (name, data) => arrived.get(name)(data),
  sections: (packed) => { book.index = unpacked(packed); },
};

function bring(name) {
  return new Promise((resolve, reject) => {
    arrived.set(name, resolve);
    document.head.append(make("script", { src: `${scripts}figures/${name}.js`, onerror: reject }));
  });
}

async function unpacked(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

const drawn = (svg) => `data:image/svg+xml,${encodeURIComponent(svg)}`;

// --- replays -----------------------------------------------------------------------------------------------------------

// A recorded run. It starts at its first frame, and nothing moves before the reader asks for it; with reduced motion every
// click is one step. What is named by data-after appears with the last frame.
async function replay(holder) {
  const { alts, packed, seconds } = await bring(holder.dataset.replay);
  const frames = await unpacked(packed);
  const last = frames.length - 1, image = holder.querySelector("img");
  const after = holder.dataset.after ? document.querySelector(holder.dataset.after) : null;
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const button = make("button", { type: "button" });
  const time = make("input", { type: "range", min: 0, max: last, step: 1, value: 0 });
  time.setAttribute("aria-label", "Frame");
  const heard = make("p", { className: "unseen", role: "status" });
  let timer = null;
  const show = (at) => {
    time.value = at;
    time.setAttribute("aria-valuetext", `${at} of ${last}`);
    image.src = drawn(frames[at]);
    image.alt = alts[at];
    if (!timer) heard.textContent = alts[at];
    if (after) after.hidden = at < last;
  };
  const name = () => {
    const again = time.valueAsNumber === last;
    button.textContent = timer ? "Pause" : again ? "Replay" : calm.matches ? "Next step" : (holder.dataset.play || "Play");
  };
  const stop = () => { clearInterval(timer); timer = null; name(); };
  button.addEventListener("click", () => {
    if (timer) { stop(); return; }
    if (time.valueAsNumber === last) { show(0); name(); if (calm.matches) return; }
    else if (calm.matches) { show(time.valueAsNumber + 1); name(); return; }
    timer = setInterval(() => {
      show(time.valueAsNumber + 1);
      if (time.valueAsNumber === last) { stop(); heard.textContent = alts[last]; }
    }, 1000 * seconds);
    name();
  });
  time.addEventListener("input", () => { stop(); show(time.valueAsNumber); name(); });
  calm.addEventListener("change", stop);
  holder.append(make("div", { className: "player" }, button, time, heard));
  show(0);
  name();
}

// --- explorers ---------------------------------------------------------------------------------------------------------

// A slider or a menu. Its value is control.value().
function controlOf({ name, stops, start, words = String }, moved) {
  const menu = typeof stops[0] === "string";
  const input = menu ? make("select", {}, ...stops.map((stop) => make("option", { textContent: stop })))
    : make("input", { type: "range", min: 0, max: stops.length - 1, step: 1 });
  const at = menu ? "selectedIndex" : "valueAsNumber", said = menu ? [] : [make("output")];
  const tell = () => {
    for (const one of said) one.textContent = words(stops[input[at]]);
    if (!menu) input.setAttribute("aria-valuetext", words(stops[input[at]]));
  };
  input[at] = stops.indexOf(start);
  tell();
  input.addEventListener("input", () => { tell(); moved(); });
  return { name, row: make("label", {}, make("span", { textContent: name.replaceAll("_", " ") }), input, ...said), value: () => stops[input[at]] };
}

// A figure that is computed. It begins as in the notebook, and replaces the picture of it.
function explorer(holder) {
  const { controls, draw } = explorers[holder.dataset.explorer];
  const image = holder.previousElementSibling.querySelector("img");
  const heard = make("p", { className: "unseen", role: "status" });
  const show = () => {
    const { svg, alt } = draw(Object.fromEntries(handles.map((one) => [one.name, one.value()])));
    image.className = "computed";
    image.src = drawn(svg);
    image.alt = alt;
    return alt;
  };
  const moved = () => { heard.textContent = show(); };
  for (const size of ["width", "height"]) image.removeAttribute(size);
  const handles = controls.map((one) => controlOf(one, moved));
  holder.append(make("div", { className: "controls" }, ...handles.map((one) => one.row), heard));
  show();
}

// --- the frame of the page -----------------------------------------------------------------------------------------------

const root = document.documentElement;
const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function frame() {
  const theme = document.querySelector("button.theme"), contents = document.querySelector("button.contents");
  const name = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("book theme", root.dataset.theme); } catch { }
    name();
  });
  name();
  if (contents) {
    contents.hidden = false;
    contents.addEventListener("click", () => contents.setAttribute("aria-expanded", document.body.classList.toggle("with-contents")));
  }
}

// Paper is light.
let themeBefore = "";
addEventListener("beforeprint", () => { themeBefore = root.dataset.theme; root.dataset.theme = "light"; });
addEventListener("afterprint", () => { root.dataset.theme = themeBefore; });

// What is wider than its place, once it is seen, can be scrolled with the keyboard.
const seen = new ResizeObserver((them) => {
  for (const { target } of them) if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
});

frame();
document.querySelectorAll("[data-replay]").forEach(replay);
document.querySelectorAll("[data-explorer]").forEach(explorer);
lockPredictions();
document.querySelectorAll(".formula, .scrolls, article pre").forEach((one) => seen.observe(one));
