// What the book does in the browser: answers wait for a guess.
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

// A form for a guess; `told` gets it, now if it was made on an earlier visit.
function ask(name, question, told) {
  const input = make("input", { type: "text", required: true, autocomplete: "off" });
  const form = make("form", { className: "guess" },
    make("label", {}, make("span", { textContent: `${question} ` }), input), make("button", { textContent: "Lock it in" }));
  const lock = (guess) => {
    form.replaceChildren(make("p", { textContent: `You guessed: ${guess}`, tabIndex: -1 }));
    told(guess);
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    guesses.keep(name, input.value.trim());
    lock(input.value.trim());
    form.firstChild.focus();
  });
  const before = guesses.all()[name];
  if (before !== undefined) lock(before);
  return form;
}

// What a cell printed with the guess that stands in the notebook, 0, says the reader's.
function say(guess, output) {
  const texts = document.createTreeWalker(output, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    text.data = text.data.replace(/\byou( predicted| said| batch)? (0(\.0+)?|\.{6})(?=[^.\d]|\.?$|\.\s)/m, `you$1 ${guess}`);
  }
}

function lockPredictions() {
  const waiting = new Map(); // output -> names of the guesses that it waits for
  for (const cell of document.querySelectorAll("[class*=tag_waits-]")) {
    const names = [...cell.classList].filter((one) => one.startsWith("tag_waits-")).map((one) => one.slice(10));
    for (const output of cell.querySelectorAll(":scope > .cell_output")) {
      output.hidden = true;
      output.before(make("p", { className: "locked", textContent: "What this cell printed is shown after your guess above." }));
      waiting.set(output, new Set(names));
    }
  }
  const asked = new Set();
  for (const cell of document.querySelectorAll(".tag_predict")) {
    const [, names, what] = cell.textContent.match(/^(\w+(?:, \w+)*) = .*# Predict: (.*)$/m);
    const folded = cell.previousElementSibling;
    const answer = folded?.matches("details.predict") ? folded : null;
    if (answer) { answer.hidden = true; asked.add(answer); }
    cell.append(ask(names, `Your guess: ${what.replace(/^type (your )?/, "")}`, (guess) => {
      if (answer) { answer.hidden = false; answer.open = true; }
      for (const [output, awaited] of waiting) {
        const before = awaited.size;
        for (const name of names.split(", ")) awaited.delete(name);
        if (awaited.size === before) continue;
        if (!names.includes(",")) say(guess, output);
        if (awaited.size === 0 && output.hidden) { output.hidden = false; output.previousElementSibling.remove(); }
      }
    }));
  }
  [...document.querySelectorAll("details.predict")].forEach((answer, place) => {
    if (asked.has(answer)) return;
    answer.hidden = true;
    answer.before(ask(`answer ${place}`, "Your guess", () => { answer.hidden = false; answer.open = true; }));
  });
}

lockPredictions();
