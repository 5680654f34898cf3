// The figures with sliders: what can be set, and what is drawn. formulas.js computes, charts.js draws.
// The controls are those of the notebooks (lib.explore), and so are the values with which they begin.
"use strict";

const explorers = (() => {
  if (typeof module !== "undefined") { globalThis.formulas = require("./formulas.js"); globalThis.charts = require("./charts.js"); }
  const { RANKS, ALARM, figure, curves, key, bars, lanes, sentence } = charts;

  // --- values in words ---------------------------------------------------------------------------------------------------

  const digits = (value, n = 2) => { const rounded = Number(value.toPrecision(n)); return rounded >= 1000 ? rounded.toLocaleString("en") : String(rounded); };
  const inUnit = (units) => (value, n = 2) => {
    const reached = units.filter(([, factor]) => Math.abs(value) >= factor * (1 - 0.5 * 10 ** -n));
    const [unit, factor] = reached.at(-1) ?? units[0];
    return `${digits(value / factor, n)} ${unit}`;
  };
  const size = inUnit([["B", 1], ["kB", 1e3], ["MB", 1e6], ["GB", 1e9], ["TB", 1e12]]);
  const seconds = inUnit([["ns", 1e-9], ["µs", 1e-6], ["ms", 1e-3], ["s", 1]]);
  const time = (value, n) => (value === 0 ? "0" : seconds(value, n));
  const short = inUnit([["", 1], ["k", 1e3], ["M", 1e6], ["G", 1e9]]);
  const rate = (value) => `${size(value)}/s`;
  const billion = (value) => `${digits(value / 1e9, 3)} billion`;
  const thousand = (value) => `${(value / 1024).toLocaleString("en")} thousand`; // of tokens: 1 thousand is 1,024
  const million = (value) => `${value / 2 ** 20} million`;
  const percent = (share, n = 0) => `${(100 * share).toFixed(n)}%`;
  const count = (value) => value.toLocaleString("en");
  const sum = (parts) => Object.values(parts).reduce((a, b) => a + b, 0);

  // --- controls ------------------------------------------------------------------------------------------------------------

  const slider = (name, stops, start, words) => ({ name, stops, start, words });
  const twos = (from, to) => Array.from({ length: to - from + 1 }, (_, at) => 2 ** (from + at));
  const bandwidth = (name = "bandwidth", start = 2.5e10) => slider(name, [1e8, 3e8, 1e9, 3e9, 1e10, 2.5e10, 5e10, 1e11, 3e11, 9e11], start, rate);
  const sizes = (start) => slider("size", [3, 4, 5, 6, 7, 8, 9, 10].flatMap((e) => (e < 10 ? [10 ** e, 3 * 10 ** e] : [10 ** e])), start, size);
  const models = slider("parameters", [125, 350, 760, 1300, 2700, 7000, 13_000].map((m) => m * 1e6), 1.3e9, billion);
  const tokens = (start) => slider("tokens_per_rank", twos(10, 17), start, thousand);
  const buckets = slider("buckets", twos(0, 6), 4, count);
  const CURVE = Array.from({ length: 57 }, (_, at) => 10 ** (3 + at / 8));

  // --- Lab 0 -----------------------------------------------------------------------------------------------------------------

  // Lines of time against size, and who is the fastest at one size.
  function costs(lines, at, note) {
    const here = Object.entries(lines).map(([name, one]) => [name, one(at)]).sort((a, b) => a[1] - b[1]);
    const [[fastest, least], [second, more]] = here;
    const drawn = Object.entries(lines).map(([name, one], i) => ({ name, xs: CURVE, ys: CURVE.map(one), color: RANKS[i], dash: ["", "7 3", "2 3", "9 3 2 3", "4 2"][i] }));
    const title = `At ${size(at)} ${fastest} is the fastest: ${time(least)}, ${second} ${time(more)}`;
    const said = here.map(([name, seconds]) => `${name} ${time(seconds)}`).join(", ");
    return figure(title, `${note} The dashed vertical line is at ${size(at)}.`, (top) => {
      const legend = key(drawn, top + 4);
      const parts = curves({ left: 70, top: legend.bottom + 6, width: 670, height: 300 }, drawn,
        { name: "size of the tensor", log: true, words: (value) => size(value, 1) }, { log: true, words: (value) => time(value, 1) }, at);
      return { parts: [...legend.parts, ...parts], bottom: legend.bottom + 356 };
    }, `At that size: ${said}.`);
  }

  const all_reduce_cost = {
    controls: [
      slider("ranks", [2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512, 1024], 8, count), sizes(1e6),
      slider("latency", [1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 1e-2], 1e-5, time), bandwidth("bandwidth", 1e10),
    ],
    draw: ({ ranks, size: at, latency, bandwidth: speed }) => costs(
      Object.fromEntries(Object.entries(formulas.allReduce).map(([name, one]) => [name, (bytes) => one(bytes, ranks, latency, 1 / speed)])),
      at, `${ranks} ranks, ${time(latency)} per message, ${rate(speed)}.`),
  };

  const ring_against_hierarchical = {
    controls: [
      slider("nodes", twos(1, 7), 4, count), slider("ranks_per_node", twos(0, 4), 8, count), sizes(1e8),
      bandwidth("link_inside", 3e11), bandwidth("link_between"),
    ],
    draw: ({ nodes, ranks_per_node: R, size: at, link_inside, link_between }) => {
      const inside = [3e-6, 1 / link_inside], between = [1e-5, 1 / link_between], slower = Math.max(inside[1], between[1]);
      return costs({
        "flat ring": (bytes) => formulas.ring(bytes, nodes * R, between[0], slower),
        "hierarchical": (bytes) => formulas.hierarchical(bytes, nodes, R, inside, between),
      }, at, `${nodes} nodes of ${R} ranks, ${rate(link_inside)} inside, ${rate(link_between)} between.`);
    },
  };

  const PART = { "weights": "#1b4f72", "gradients": "#e08a2e", "fp32 weights": "#8d80c9", "Adam's moments": "#c9c2e8" };
  const GPUS = { "V100": 32e9, "H100": 80e9, "H200": 141e9 };
  const partKey = (parts, top) => key(Object.entries(parts).map(([name, color]) => ({ name, color })), top);

  const model_memory = {
    controls: [
      slider("parameters", [125, 350, 760, 1300, 2700, 7000, 13_000, 34_000, 70_000, 175_000].map((m) => m * 1e6), 7e9, billion),
      slider("ranks_that_share_the_state", twos(0, 6), 1, count),
    ],
    draw: ({ parameters, ranks_that_share_the_state: N }) => {
      const rows = Object.keys(formulas.recipes).map((name) => ({ name, parts: formulas.rankState(parameters / N, 0, 1, name) }));
      const need = Math.max(...rows.map(({ parts }) => sum(parts))), fits = Object.entries(GPUS).find(([, bytes]) => need <= bytes);
      const title = fits ? `All of these fit in one ${fits[0]}` : `Not all of these fit in one H200: the largest takes ${size(need, 3)}`;
      const note = `${billion(parameters)} parameters trained with Adam${N > 1 ? `, shared by ${N} ranks` : ""}; activations are needed in addition.`;
      return figure(title, `${note} The vertical lines show the memory of each GPU.`, (top) => {
        const legend = partKey(PART, top + 4), drawn = bars(legend.bottom, rows, PART, (bytes) => size(bytes, 3), GPUS, Math.min(Math.max(need, 160e9), 4 * 141e9));
        return { parts: [...legend.parts, ...drawn.parts], bottom: drawn.bottom };
      }, rows.map(({ name, parts }) => `${name} ${size(sum(parts), 3)}`).join(", ") + ".");
    },
  };

  // --- Lab 1: a device achieves 400 TFLOP/s, gradients have 2 bytes, a message takes 10 µs before its first byte -----------

  const FLOPS = 400e12, ALPHA = 1e-5;
  const WORK = { "forward": "#5aa9e6", "backward": "#f0a030", "all-reduce of a bucket": "#3d4a5c" };

  const data_parallel_step = {
    controls: [slider("ranks", twos(1, 10), 8, count), models, tokens(8192), bandwidth(), buckets],
    draw: ({ ranks, parameters, tokens_per_rank, bandwidth: speed, buckets: K }) => {
      const bytes = 2 * parameters, link = [ALPHA, 1 / speed], compute = formulas.perToken(parameters, FLOPS);
      const each = formulas.ring(bytes / K, ranks, ...link);
      const steps = [["after backward", false], ["overlapped", true]].map(([name, overlaps]) => {
        const step = formulas.dataParallelStep(overlaps, tokens_per_rank, ranks, bytes, compute, link, K), done = step.forward + step.backward;
        const ready = Array.from({ length: K }, (_, k) => (overlaps ? step.forward + (step.backward * (k + 1)) / K : done));
        return { name, step, done, sent: formulas.bucketTimes(ready, each) };
      });
      const [after, over] = steps.map(({ step }) => step), longest = Math.max(after.seconds, over.seconds);
      const enough = formulas.breakEvenRows(ranks, bytes, compute, link, K);
      const title = `Overlapped: ${percent(formulas.hidden(over))} of the communication is hidden, ${time(over.seconds, 3)} a step instead of ${time(after.seconds, 3)}`;
      const note = `${billion(parameters)} parameters, ${count(tokens_per_rank)} tokens on each of ${ranks} ranks, ${rate(speed)}. Communication takes as long as the backward pass at ${count(Math.round(enough))} tokens.`;
      return figure(title, note, (top) => {
        const legend = partKey(WORK, top + 4);
        const rows = steps.flatMap(({ name, step, done, sent }) => [
          { name, note: time(step.seconds, 3), boxes: [{ from: 0, to: step.forward, color: WORK.forward, text: "forward" }, { from: step.forward, to: done, color: WORK.backward, text: "backward" }] },
          { name: "network", boxes: sent.map(([from, to], k) => ({ from, to, color: WORK["all-reduce of a bucket"], text: k })) },
        ]);
        const drawn = lanes(legend.bottom, rows, longest, (value) => time(value), 130);
        return { parts: [...legend.parts, ...drawn.parts], bottom: drawn.bottom };
      });
    },
  };

  const scaling_explorer = {
    controls: [models, slider("batch_if_divided", twos(20, 24), 2 ** 20, million), tokens(16_384), bandwidth(), buckets],
    draw: ({ parameters, batch_if_divided: batch, tokens_per_rank: rows, bandwidth: speed, buckets: K }) => {
      const N = twos(0, 10), compute = formulas.perToken(parameters, FLOPS), link = [ALPHA, 1 / speed], one = 1 / (compute[0] + compute[1]);
      const at = (overlaps, tokens, ranks) => formulas.dataParallelStep(overlaps, tokens, ranks, 2 * parameters, compute, link, K).seconds;
      const ways = { "after backward": false, "overlapped": true };
      const panels = { strong: (way, n) => batch / at(way, batch / n, n), weak: (way, n) => (n * rows) / at(way, rows, n) };
      const kept = (panel, way) => panels[panel](way, 1024) / (1024 * one);
      const title = `On 1,024 ranks weak scaling keeps ${percent(kept("weak", true))} of perfect, strong scaling ${percent(kept("strong", true))}`;
      const note = `${billion(parameters)} parameters, ${rate(speed)}. Strong: ${count(batch)} tokens in all; weak: ${count(rows)} per rank. The title is about overlapped steps.`;
      return figure(title, note, (top) => {
        const colors = { "perfect": "#8b8f96", "after backward": RANKS[1], "overlapped": RANKS[0] };
        const legend = key([["perfect", "4 4"], ["after backward", "7 3"], ["overlapped", ""]].map(([name, dash]) => ({ name, dash, color: colors[name] })), top + 4);
        const parts = Object.entries(panels).flatMap(([name, panel], i) => curves({ left: 76 + 374 * i, top: legend.bottom + 24, width: 290, height: 260 }, [
          { name: "perfect", xs: N, ys: N.map((n) => n * one), color: colors.perfect, dash: "4 4" },
          ...Object.entries(ways).map(([way, overlaps]) => ({ name: way, xs: N, ys: N.map((n) => panel(overlaps, n)), color: colors[way], dash: overlaps ? "" : "7 3" })),
        ], { name: "ranks", log: true, words: count }, { log: true, words: (value) => short(value, 1) }, null, `${name} scaling, tokens per second`));
        return { parts: [...legend.parts, ...parts], bottom: legend.bottom + 332 };
      }, Object.keys(panels).map((panel) => `${panel}: after backward ${percent(kept(panel, false))}, overlapped ${percent(kept(panel, true))} of perfect on 1,024 ranks`).join("; ") + ".");
    },
  };

  // --- Lab 2 -----------------------------------------------------------------------------------------------------------------

  const TIMES = [0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4];
  const KIND = { F: "#5aa9e6", B: "#f0a030", I: "#f0a030", W: "#2f7d4f" };

  const pipeline = {
    controls: [
      { name: "schedule", stops: Object.keys(formulas.schedules), start: "1F1B" },
      slider("p", [1, 2, 3, 4, 6, 8], 4), slider("m", [1, 2, 3, 4, 6, 8, 12, 16, 24], 8), slider("v", [1, 2, 3, 4], 2),
      slider("forward", TIMES, 1), slider("backward_input", TIMES, 1), slider("backward_weights", TIMES, 1), slider("message", [0, ...TIMES], 0),
    ],
    draw: ({ schedule, p, m, v, forward: F, backward_input: I, backward_weights: W, message }) => {
      let run;
      const share = { "interleaved": v, "ZB-V": 2, "DualPipeV": 2 }[schedule] ?? 1;
      try {
        run = formulas.simulate(formulas.schedules[schedule](p, m, v), { F: F / share, B: (I + W) / share, I: I / share, W: W / share }, message);
      } catch (refusal) { return sentence(`${schedule} cannot run this`, `${refusal.message}.`); }
      const formula = formulas.bubbleFormula(schedule, p, m, v, F, I, W);
      const beside = formula === null ? "no formula here" : `formula ${percent(formula, 1)}`;
      const title = `${schedule}: bubble ${percent(run.bubble, 1)} (${beside}${message > 0 ? ", without messages" : ""})`;
      const sizes = `p = ${p}, m = ${m}${schedule === "interleaved" ? `, v = ${v}` : ""}; F ${F}, I ${I}, W ${W}, message ${message}.`;
      const most = share > 1 ? "micro-batches x stages" : "micro-batches";
      const told = run.bubbles.map((bubble, rank) => `rank ${rank} is idle for ${percent(bubble, 1)} and keeps at most ${run.kept[rank]}`).join(", ");
      return figure(title, `${sizes} Blue: forward; orange: backward; green: backward of the weights alone. On the right: idle, and the ${most} kept.`, (top) => {
        const rows = run.bubbles.map((bubble, rank) => ({
          name: `rank ${rank}`, note: `${percent(bubble)}, ${run.kept[rank]}`,
          boxes: run.bars.filter((bar) => bar.rank === rank).map((bar) => ({ from: bar.start, to: bar.end, color: KIND[bar.kind], text: bar.microbatch })),
        }));
        return lanes(top, rows, run.makespan, (value) => digits(value, 3));
      }, `The step takes ${digits(run.makespan, 3)}: ${told}.`);
    },
  };

  // --- Lab 4 -----------------------------------------------------------------------------------------------------------------

  const LARGE = (start) => slider("parameters", [0.125, 0.35, 1.3, 2.7, 7.5, 13, 34, 70, 175, 405, 1000].map((b) => b * 1e9), start, billion);

  const zero_memory = {
    controls: [LARGE(7.5e9), slider("ranks", twos(0, 10), 64, count), { name: "precision", stops: Object.keys(formulas.recipes), start: "mixed" }],
    draw: ({ parameters, ranks, precision }) => {
      const rows = [0, 1, 2, 3].map((stage) => ({ name: `stage ${stage}`, parts: formulas.rankState(parameters, stage, ranks, precision) }));
      const totals = rows.map(({ parts }) => sum(parts)), fits = totals.findIndex((bytes) => bytes <= 80e9);
      const title = `${billion(parameters)} parameters, ${count(ranks)} ranks: ${fits < 0 ? "no stage fits" : fits === 0 ? "every stage fits" : `stage ${fits} and above ${fits === 3 ? "fits" : "fit"}`} in 80 GB`;
      return figure(title, `Model state on one rank, ${precision}. Activations are needed in addition. The vertical line shows 80 GB.`, (top) => {
        const legend = partKey(PART, top + 4), drawn = bars(legend.bottom, rows, PART, (bytes) => size(bytes, 3), { "80 GB": 80e9 }, Math.min(Math.max(...totals, 100e9), 480e9));
        return { parts: [...legend.parts, ...drawn.parts], bottom: drawn.bottom };
      }, rows.map(({ name }, stage) => `${name} ${size(totals[stage], 3)}`).join(", ") + ".");
    },
  };

  const zero_volume = {
    controls: [LARGE(7.5e9), slider("ranks", twos(1, 10), 64, count), slider("microbatches", twos(0, 4), 4, count), bandwidth()],
    draw: ({ parameters, ranks, microbatches, bandwidth: speed }) => {
      const unit = ((ranks - 1) / ranks) * parameters, ks = [...new Set([1, microbatches])];
      const rows = [0, 1, 2, 3].flatMap((stage) => ks.map((k) => ({ name: `stage ${stage}, ${k} micro-batch${k > 1 ? "es" : ""}`, parts: { [`k${k}`]: formulas.zeroPasses(stage, k) } })));
      const factor = formulas.zeroPasses(3, microbatches) / 2;
      const title = `With ${microbatches} micro-batch${microbatches > 1 ? "es" : ""} stage 3 sends ${digits(factor, 3)} times as much as stage 0`;
      const seconds = (passes) => time((2 * passes * unit) / speed, 3);
      return figure(title, `${billion(parameters)} parameters, ${count(ranks)} ranks, ${rate(speed)}, 2 bytes per element, without latency. A bar is what a rank sends in a step.`, (top) =>
        bars(top, rows, { k1: RANKS[0], [`k${microbatches}`]: microbatches > 1 ? RANKS[1] : RANKS[0] }, seconds),
      rows.map(({ name, parts }) => `${name}: ${seconds(sum(parts))}`).join("; ") + ".");
    },
  };

  // --- Lab 5 -----------------------------------------------------------------------------------------------------------------

  const FACTORS = Array.from({ length: 71 }, (_, at) => Number((0.5 + 0.05 * at).toFixed(2)));

  const capacity = {
    controls: [
      slider("capacity_factor", FACTORS, 1.25), slider("experts", twos(1, 6), 8, count),
      slider("skew", [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5], 0.5), slider("tokens", [64, 256, 1024, 4096], 1024, count),
    ],
    draw: ({ capacity_factor: at, experts, skew, tokens: n }) => {
      const [dropped, empty] = formulas.droppedAndEmpty(FACTORS, experts, skew, n), here = FACTORS.indexOf(at);
      const busiest = experts * formulas.popularity(experts, skew)[0];
      const title = `Capacity factor ${at}: ${percent(dropped[here], 1)} of tokens dropped, ${percent(empty[here], 1)} of slots empty`;
      const drawn = [{ name: "tokens dropped", xs: FACTORS, ys: dropped, color: RANKS[5], dash: "" }, { name: "slots empty", xs: FACTORS, ys: empty, color: RANKS[0], dash: "7 3" }];
      return figure(title, `${count(n)} tokens, ${experts} experts; the busiest is chosen ${digits(busiest)} times as often as on average.`, (top) => {
        const legend = key(drawn, top + 4);
        const parts = curves({ left: 60, top: legend.bottom + 6, width: 680, height: 270 }, drawn,
          { name: "capacity factor", words: (value) => digits(value) }, { words: percent, low: 0, high: Math.max(0.1, ...dropped, ...empty) }, at);
        return { parts: [...legend.parts, ...parts], bottom: legend.bottom + 326 };
      });
    },
  };

  // --- Lab 6 -----------------------------------------------------------------------------------------------------------------

  // What is drawn of a plan's costs: [colour, components of formulas.js], as in the notebook (lib.plots.components).
  const BYTES = {
    "weights": [PART.weights, ["weights"]], "gradients": [PART.gradients, ["gradients"]], "optimizer": [PART["fp32 weights"], ["optimizer"]],
    "activations": ["#4f9d69", ["activations"]], "logits": [RANKS[2], ["logits"]], "comes and goes": ["#c4c1b8", ["working"]],
  };
  const SECONDS = {
    "matmuls": [KIND.F, ["matmul"]], "other kernels": ["#b9d9f3", ["attention", "elementwise", "launch"]], "tp": [RANKS[4], ["tensor"]],
    "pp": [RANKS[6], ["message"]], "bubble": ["#dcdad3", ["bubble"]], "dp": [RANKS[1], ["sharding"]], "optimizer": [RANKS[7], ["optimizer"]],
  };
  const grouped = (costs, groups) => Object.fromEntries(Object.entries(groups).map(([name, [, components]]) =>
    [name, components.reduce((all, one) => all + costs[one], 0)]).filter(([, value]) => value > 0));

  const plans = {
    controls: [
      { name: "model", stops: Object.keys(formulas.models), start: "gpt-3-175b" }, { name: "gpu_kind", stops: Object.keys(formulas.machines), start: "A100-80GB" },
      slider("gpus", [8, 64, 512, 1024], 1024, count), slider("batch", [64, 512, 1536, 3072], 1536, count),
      slider("tp", [1, 2, 4, 8, 16], 8), slider("pp", formulas.depths, 8), slider("micro_batch", [1, 2, 4, 8], 1),
      slider("zero", [0, 1, 2, 3], 1), { name: "recompute", stops: ["none", "full"], start: "none" },
    ],
    draw: ({ model: name, gpu_kind, gpus, batch, tp, pp, micro_batch, zero, recompute }) => {
      const model = formulas.models[name], gpu = formulas.machines[gpu_kind], job = `${name} on ${count(gpus)} ${gpu_kind}, ${count(batch)} sequences of 2,048 tokens.`;
      if (gpus % (tp * pp)) return sentence("No such plan", `${job} ${count(gpus)} GPUs are no multiple of tp ${tp} x pp ${pp} = ${tp * pp}: make tp or pp smaller.`);
      const plan = formulas.planOf(batch, micro_batch, tp, pp, gpus / (tp * pp), 1, zero, recompute), why = formulas.problem(model, plan);
      if (why) return sentence("No such plan", `${job} ${formulas.nameOf(plan)}: ${why}.`);
      const best = formulas.bestPlan(name, gpu_kind, gpus, batch);
      const rows = Object.entries({ "yours": plan, ...(best && { "the best": best }) }).map(([of, one]) => {
        const bytes = formulas.memory(model, one), times = formulas.stepSeconds(model, one, gpu);
        return { of, needs: sum(bytes) / formulas.GIB, takes: sum(times), bytes: grouped(bytes, BYTES), times: grouped(times, SECONDS) };
      });
      const [{ needs, takes }, { takes: least } = { takes: Infinity }] = rows, room = (formulas.FITS * gpu.memory) / formulas.GIB;
      const title = needs > room ? `Does not fit: ${needs.toFixed(0)} GiB on the fullest GPU, ${room.toFixed(0)} to use`
        : takes <= least ? `Fits, and takes ${digits(takes, 3)} s a step: no plan of the search is faster`
          : `Fits, and takes ${digits(takes, 3)} s a step: ${(takes / least).toFixed(2)} times the best plan's ${digits(least, 3)} s`;
      const beside = best ? `the best, ${formulas.nameOf(best)}` : "no plan fits";
      const half = (kind, groups, unit, words, walls, top) => {
        const used = Object.entries(groups).filter(([part]) => rows.some((row) => row[kind][part])), colors = Object.fromEntries(used.map(([part, [color]]) => [part, color]));
        const legend = partKey(colors, top);
        const parts = (row) => Object.fromEntries(Object.entries(row[kind]).map(([part, value]) => [part, value / unit]));
        const drawn = bars(legend.bottom, rows.map((row) => ({ name: row.of, parts: parts(row) })), colors, words, walls);
        return { parts: [...legend.parts, ...drawn.parts], bottom: drawn.bottom };
      };
      return figure(title, `${job} Yours: ${formulas.nameOf(plan)}; ${beside}. tp, pp and dp are messages along these axes.`, (top) => {
        const upper = half("bytes", BYTES, formulas.GIB, (value) => `${digits(value, 3)} GiB`, { "to use": room }, top + 4);
        const lower = half("times", SECONDS, 1, (value) => `${digits(value, 3)} s`, {}, upper.bottom + 26);
        return { parts: [...upper.parts, ...lower.parts], bottom: lower.bottom };
      }, rows.map((row) => `${row.of}: ${digits(row.needs, 3)} GiB, ${digits(row.takes, 3)} s`).join("; ") + ".");
    },
  };

  return { all_reduce_cost, ring_against_hierarchical, model_memory, data_parallel_step, scaling_explorer, pipeline, zero_memory, zero_volume, capacity, plans };
})();
if (typeof module !== "undefined") module.exports = explorers;
