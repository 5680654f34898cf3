// The formulas of the figures with sliders, the simulator of pipeline schedules, and the costs of a plan. A test compares them
// with lib's.
//
// Sizes in bytes, times in seconds, N ranks; alpha: seconds per message, beta: seconds per byte.
"use strict";

const formulas = (() => {
  const log2up = (N) => Math.ceil(Math.log2(N) - 1e-9);
  const power = (N) => 2 ** Math.floor(Math.log2(N) + 1e-9); // the largest power of two up to N
  const folded = (N) => (power(N) < N ? 1 : 0);

  // --- all-reduces (lib.collectives.cost) ------------------------------------------------------------------------------

  const ring = (bytes, N, alpha, beta) => 2 * (N - 1) * (alpha + (bytes / N) * beta);
  const allReduce = {
    "star": (bytes, N, alpha, beta) => 2 * (N - 1) * (alpha + bytes * beta),
    "tree": (bytes, N, alpha, beta) => 2 * log2up(N) * (alpha + bytes * beta),
    "ring": ring,
    "recursive doubling": (bytes, N, alpha, beta) => (log2up(power(N)) + 2 * folded(N)) * (alpha + bytes * beta),
    "halving doubling": (bytes, N, alpha, beta) => {
      const P = power(N);
      return 2 * (log2up(P) * alpha + ((P - 1) / P) * bytes * beta) + 2 * folded(N) * (alpha + bytes * beta);
    },
  };
  // M nodes of R ranks; inside and across are [alpha, beta]
  const hierarchical = (bytes, M, R, inside, across) => ring(bytes, R, ...inside) + ring(bytes, M, ...across);

  // --- model state (lib.cost.state, lib.cost.zero) -----------------------------------------------------------------------

  const recipes = { // bytes per parameter
    "fp32": { weights: 4, gradients: 4, "fp32 weights": 0, "Adam's moments": 8 },
    "mixed": { weights: 2, gradients: 2, "fp32 weights": 4, "Adam's moments": 8 },
    "mixed, fp32 gradients": { weights: 2, gradients: 4, "fp32 weights": 4, "Adam's moments": 8 },
    "bf16": { weights: 2, gradients: 2, "fp32 weights": 0, "Adam's moments": 4 },
  };
  const shardedFrom = { weights: 3, gradients: 2, "fp32 weights": 1, "Adam's moments": 1 }; // the stage of ZeRO
  const rankState = (parameters, stage, N, precision) => Object.fromEntries(Object.entries(recipes[precision]).map(
    ([part, bytes]) => [part, (parameters * bytes) / (stage >= shardedFrom[part] ? N : 1)]));
  // what a rank sends in a step with k micro-batches, in units of (N-1)/N of the parameters
  const zeroPasses = (stage, k) => (stage < 2 ? 2 : stage === 2 ? k + 1 : 3 * k);

  // --- a step of data parallelism (lib.cost.data_parallel) ---------------------------------------------------------------

  const perToken = (parameters, flops) => [(2 * parameters) / flops, (4 * parameters) / flops];
  function dataParallelStep(overlapped, rows, N, bytes, compute, link, K) {
    const [F, B] = compute.map((seconds) => rows * seconds), c = ring(bytes / K, N, ...link);
    const seconds = F + (overlapped ? Math.max(B + c, B / K + K * c) : B + K * c);
    return { forward: F, backward: B, communication: K * c, seconds, exposed: seconds - F - B };
  }
  const hidden = (step) => (step.communication ? Math.max(0, 1 - step.exposed / step.communication) : 0);
  const breakEvenRows = (N, bytes, compute, link, K) => (K * ring(bytes / K, N, ...link)) / compute[1];
  // [begin, end] of each bucket's all-reduce, one after the other, none before it is ready
  function bucketTimes(ready, each) {
    let free = 0;
    return ready.map((when) => { const begin = Math.max(when, free); free = begin + each; return [begin, free]; });
  }

  // --- capacity of experts (lib.explore.lab5) ------------------------------------------------------------------------------

  function popularity(E, skew) {
    const weight = Array.from({ length: E }, (_, e) => (1 + e) ** -skew), sum = weight.reduce((a, b) => a + b);
    return weight.map((one) => one / sum);
  }
  // the mean of max(0, X - C) for each C from 0 to n, where X is binomial
  function expectedExcess(n, p) {
    const chance = new Float64Array(n + 1), tail = new Float64Array(n + 2), excess = new Float64Array(n + 2);
    const logs = new Float64Array(n + 1);
    for (let j = 1; j <= n; j++) logs[j] = logs[j - 1] + Math.log(j);
    for (let j = 0; j <= n; j++) chance[j] = Math.exp(logs[n] - logs[j] - logs[n - j] + j * Math.log(p) + (n - j) * Math.log1p(-p));
    for (let j = n; j >= 0; j--) tail[j] = tail[j + 1] + chance[j];
    for (let C = n - 1; C >= 0; C--) excess[C] = excess[C + 1] + tail[C + 1];
    return excess;
  }
  function droppedAndEmpty(factors, E, skew, tokens) {
    const excess = new Float64Array(tokens + 1);
    for (const p of popularity(E, skew)) expectedExcess(tokens, p).forEach((one, C) => { if (C <= tokens) excess[C] += one / tokens; });
    const slots = factors.map((factor) => Math.min(tokens, Math.ceil(Math.round(100 * factor) * tokens / (100 * E) - 1e-9)));
    const dropped = slots.map((C) => excess[C]);
    return [dropped, slots.map((C, at) => Math.max(0, 1 - (tokens * (1 - dropped[at])) / (E * C)))];
  }

  // --- pipeline schedules (lib.pipeline): per rank a list of [stage, kind, micro-batch] ---------------------------------

  const upTo = (n) => Array.from({ length: Math.max(0, n) }, (_, at) => at);
  const repeat = (n, some) => upTo(n).flatMap(() => some);
  // forwards and backwards in turn, once `ahead` forwards have run
  const inTurn = (forwards, backwards, ahead) => [
    ...forwards.slice(0, ahead),
    ...forwards.slice(ahead).flatMap((forward, at) => [forward, backwards[at]]),
    ...backwards.slice(Math.max(0, forwards.length - ahead)),
  ];
  const oneKind = (stage, kind, m) => upTo(m).map((j) => [stage, kind, j]);
  // numbers the micro-batches of [stage, kind] in order; those from m on are left out
  function numbered(work, m) {
    const count = {}, next = (stage, kind) => count[`${stage}${kind}`] ?? 0;
    return work.map(([stage, kind]) => {
      const action = [stage, kind, next(stage, kind)];
      for (const part of { B: "BIW", I: "BI" }[kind] ?? kind) count[`${stage}${part}`] = next(stage, part) + 1;
      return action;
    }).filter(([, , j]) => j < m);
  }
  const schedules = {
    "relay": (p, m) => upTo(p).map((i) => upTo(m).flatMap((j) => [[i, "F", j], [i, "B", j]])),
    "GPipe": (p, m) => upTo(p).map((i) => [...oneKind(i, "F", m), ...oneKind(i, "B", m)]),
    "1F1B": (p, m) => upTo(p).map((i) => inTurn(oneKind(i, "F", m), oneKind(i, "B", m), p - 1 - i)),
    "interleaved": (p, m, v) => {
      if (v === 1) return schedules["1F1B"](p, m);
      const groups = Math.max(1, Math.floor(m / p)), r = m / groups;
      if (m % groups) throw new RangeError(`${m} micro-batches make no ${groups} groups of equal size on ${p} ranks: choose a multiple of ${p}`);
      return upTo(p).map((i) => {
        const list = (kind, stages) => upTo(groups).flatMap((g) => stages.flatMap((s) => upTo(r).map((j) => [s, kind, g * r + j])));
        const mine = upTo(v).map((chunk) => chunk * p + i);
        return inTurn(list("F", mine), list("B", [...mine].reverse()), (v - 1) * r + 2 * (p - 1 - i));
      });
    },
    "ZB-H1": (p, m) => upTo(p).map((i) => {
      const ahead = Math.min(p - 1 - i, m);
      const body = upTo(m).flatMap((j) => [
        ...(ahead + j < m ? [[i, "F", ahead + j]] : []), [i, "I", j], ...(j >= i ? [[i, "W", j - i]] : [])]);
      return [...oneKind(i, "F", ahead), ...body, ...oneKind(i, "W", m).slice(Math.max(m - i, 0))];
    }),
    "ZB-V": (p, m) => upTo(p).map((i) => {
      const a = i, b = 2 * p - 1 - i, n = Math.max(m, 2 * p - 1), both = "FIW".split("");
      return numbered([
        ...repeat(2 * (p - i) - 1, [[a, "F"]]), ...repeat(i, [[b, "F"], [a, "F"]]), ...repeat(p - i, both.map((k) => [b, k])),
        ...repeat(n - p, [...both.map((k) => [a, k]), ...both.map((k) => [b, k])]),
        ...repeat(i, [[a, "I"], [b, "I"]]), ...repeat(p - i, [[a, "I"], [a, "W"]]), ...repeat(i, [[b, "W"]]), ...repeat(i, [[a, "W"]]),
      ], m);
    }),
    "DualPipeV": (p, m) => {
      if (m < 2 * p) throw new RangeError(`${m} micro-batches on ${p} ranks: DualPipeV takes at least 2p = ${2 * p}`);
      return upTo(p).map((i) => {
        const a = i, b = 2 * p - 1 - i, after = p - 1 - i, last = repeat(i + 1, [b, a]);
        const full = last.slice(0, i + 1), split = last.slice(i + 1), late = [...split, ...repeat(after, [a])];
        return numbered([
          ...repeat(2 * after, [[a, "F"]]), ...repeat(i + 1, [[a, "F"], [b, "F"]]), ...repeat(after, [[b, "I"], [b, "W"], [b, "F"]]),
          ...repeat(m - 2 * p + i + 1, [[a, "F"], [b, "B"], [b, "F"], [a, "B"]]),
          ...repeat(after, [[b, "B"], [b, "F"], [a, "B"]]), ...full.map((s) => [s, "B"]), ...split.map((s) => [s, "I"]),
          ...late.slice(0, after).flatMap((s) => [[s, "W"], [a, "I"]]), ...late.slice(after).map((s) => [s, "W"]),
        ], m);
      });
    },
  };

  // When each action runs: as soon as its rank is free and what it needs has arrived. times: {F, B, I, W}.
  function simulate(schedule, times, message) {
    const rankOf = {}, split = new Set(), stages = 1 + Math.max(...schedule.flat().map(([stage]) => stage));
    schedule.forEach((actions, rank) => actions.forEach(([stage, kind, j]) => {
      rankOf[stage] = rank;
      if (kind === "I") split.add(`${stage},${j}`);
    }));
    const end = new Map(), key = (stage, kind, j) => `${stage}${kind}${j}`;
    const backward = (stage, j) => key(stage, split.has(`${stage},${j}`) ? "I" : "B", j);
    const needs = ([stage, kind, j]) => {
      if (kind === "F") return stage > 0 ? [[stage - 1, key(stage - 1, "F", j)]] : [];
      if (kind === "W") return [[stage, key(stage, "I", j)]];
      return [[stage, key(stage, "F", j)], ...(stage < stages - 1 ? [[stage + 1, backward(stage + 1, j)]] : [])];
    };
    const at = schedule.map(() => 0), free = schedule.map(() => 0), bars = [];
    for (let moved = true; moved;) {
      moved = false;
      schedule.forEach((actions, rank) => {
        while (at[rank] < actions.length && needs(actions[at[rank]]).every(([, need]) => end.has(need))) {
          const action = actions[at[rank]++];
          const arrivals = needs(action).map(([stage, need]) => end.get(need) + (rankOf[stage] !== rank ? message : 0));
          const start = Math.max(free[rank], ...arrivals);
          free[rank] = start + times[action[1]];
          end.set(key(...action), free[rank]);
          bars.push({ rank, stage: action[0], kind: action[1], microbatch: action[2], start, end: free[rank] });
          moved = true;
        }
      });
    }
    if (at.some((done, rank) => done < schedule[rank].length)) throw new RangeError("the ranks wait for each other: a deadlock");
    const makespan = Math.max(...free) - Math.min(...bars.map((bar) => bar.start));
    const busy = schedule.map((_, rank) => bars.reduce((sum, bar) => sum + (bar.rank === rank ? bar.end - bar.start : 0), 0));
    const kept = schedule.map((actions) => {
      let now = 0, most = 0;
      for (const [, kind] of actions) { now += { F: 1, B: -1, I: 0, W: -1 }[kind]; most = Math.max(most, now); }
      return most;
    });
    const bubbles = busy.map((one) => 1 - one / makespan);
    return { bars, makespan, bubbles, kept, bubble: bubbles.reduce((a, b) => a + b) / bubbles.length };
  }

  // The bubble if messages take no time; null where no formula is known. F, I and W are the times of a rank's layers.
  function bubbleFormula(schedule, p, m, v, F, I, W) {
    const fewest = { "ZB-H1": p, "interleaved": p, "ZB-V": 2 * p - 1 }[schedule] ?? 1;
    const inOrder = { "ZB-V": I >= F && F >= W, "DualPipeV": F >= I && I >= W }[schedule] ?? true;
    if (m < fewest || !inOrder) return null;
    const idle = (p - 1) * {
      "relay": m * (F + I + W), "GPipe": F + I + W, "1F1B": F + I + W, "interleaved": (F + I + W) / v,
      "ZB-H1": Math.min(F, I) >= W ? F + I - W : Math.max(F, I),
      "ZB-V": Math.max(I, 2 * (I - W)) / 2, "DualPipeV": Math.max(F + I - W, 2 * (F - W)) / 2,
    }[schedule];
    return idle / (idle + m * (F + I + W));
  }

  // --- a plan: bytes on the fullest GPU and seconds of a step (lib.cost, which has the sources) ------------------------------
  //
  // lib's model for a dense GPT in bf16 on Megatron-Core: fused attention, gradients summed in 2 bytes by the product itself,
  // sequence parallelism where tp > 1, 1F1B or interleaved. Of 1,024 GPUs: tp x pp x dp, side by side, each pipeline runs
  // m = batch / (dp b) micro-batches of b sequences, and each of its ranks has v stages.

  const GIB = 2 ** 30, SEQ = 2048, FITS = 0.83; // FITS: the share of a GPU's memory that a plan may need
  const models = { // lib/cost/data/models.csv; kv: heads of keys and values, d: a head's size, f: the MLP's width, V: vocabulary
    "llama2-13b": { layers: 40, h: 5120, a: 40, kv: 40, d: 128, f: 13824, V: 32000, gated: true, tied: false },
    "llama3-70b": { layers: 80, h: 8192, a: 64, kv: 8, d: 128, f: 28672, V: 128256, gated: true, tied: false },
    "gpt-3-175b": { layers: 96, h: 12288, a: 96, kv: 96, d: 128, f: 49152, V: 51200, gated: false, tied: true },
    "gpt-1t": { layers: 128, h: 25600, a: 160, kv: 160, d: 160, f: 102400, V: 51200, gated: false, tied: true },
  };
  const machines = { // machines.csv; matmul and flash: the share of bf16 that products and fused attention reach (parameters.csv)
    "A100-80GB": { memory: 80 * GIB, bf16: 312e12, hbm: 2039e9, link: 229e9, nic: 25e9, perNode: 8, sms: 108, matmul: 0.9, flash: 0.3912 },
    "H100-80GB": { memory: 80 * GIB, bf16: 989e12, hbm: 3350e9, link: 365e9, nic: 50e9, perNode: 8, sms: 132, matmul: 0.7394, flash: 0.2308 },
    "B200": { memory: 179 * GIB, bf16: 2250e12, hbm: 7700e9, link: 680e9, nic: 50e9, perNode: 8, sms: 148, matmul: 0.4672, flash: 0.4261 },
  };
  const stack = { gradientBytes: 2, state: [2, 4, 12], logitBytes: 8, tpOverlap: 0.8, launch: 0.3, factor: 1.076 }; // stacks.csv
  const fitted = { // parameters.csv
    ramp: 63.4, hbm: 0.7145, unfused: 1.264, launch: 0.0008575, network: 0.8802, hidden: 0.7579, exposed: 0.6835, straggler: 0.008442,
  };

  const planOf = (batch, b, tp, pp, dp, v, zero, recompute) => ({ batch, b, tp, pp, dp, v, zero, recompute, m: batch / (dp * b) });
  const nameOf = ({ b, tp, pp, dp, v, zero, recompute }) =>
    `tp${tp} pp${pp} dp${dp}${v > 1 ? ` v${v}` : ""} b${b} zero${zero}${recompute === "full" ? " recompute" : ""}${tp > 1 ? " sp" : ""}`;

  // Layers on each stage. Where pp does not divide them, embedding and vocabulary count as a layer each (lib.cost.step.split).
  const slots = (layers, pp) => layers + (layers % pp ? 2 : 0);
  function split(layers, pp) {
    const shared = slots(layers, pp), counts = upTo(pp).map((stage) => Math.floor(shared / pp) + (stage < shared % pp ? 1 : 0));
    if (shared > layers) { counts[0] -= 1; counts[pp - 1] -= 1; }
    return counts;
  }

  // Why there is no such plan; null if there is one (lib.cost.plan, lib.explore.lab6).
  const depths = [1, 2, 3, 4, 6, 8, 12, 16, 32, 64]; // pp that can be set
  function problem(model, { batch, b, tp, pp, dp }) {
    const { layers, a } = model, rows = dp * b, below = Math.floor(batch / rows) * rows;
    const near = [below, below + rows].filter(Boolean).join(" or ");
    const fitting = depths.filter((one) => one <= layers && Math.min(...split(layers, one)) > 0);
    return batch % rows ? `global batch ${batch} is not a multiple of dp ${dp} x micro-batch ${b} = ${rows}: use ${near}, or another dp`
      : a % tp ? `tp ${tp} does not divide ${a} heads`
        : pp > layers ? `pp ${pp} x v 1 = ${pp} stages, but there are ${layers} layers`
          : Math.min(...split(layers, pp)) < 1 ? `${layers} layers leave one of ${pp} stages without any: use pp ${fitting.join(", ")}` : null;
  }

  // What a layer multiplies, as [inputs, outputs]: q k v, attention's output, the MLP; SwiGLU's first two matrices are one.
  const mlp = ({ h, f, gated }) => [[h, gated ? 2 * f : f], [f, h]];
  const matrices = ({ h, a, kv, d, ...rest }) => [[h, (a + 2 * kv) * d], [a * d, h], ...mlp({ h, ...rest })];
  // Parameters on a rank (lib.cost.parts). tp divides the matrices, but not the norms, 4 h.
  const layerParameters = (model, tp) => matrices(model).reduce((sum, [n, m]) => sum + n * m, 0) / tp + 4 * model.h;
  const embedding = ({ V, h }, tp) => (V * h) / tp;
  function stageParameters(model, { tp, pp }, stage, layers) {
    const ends = (stage === 0 ? 1 : 0) + (stage === pp - 1 && !(model.tied && pp === 1) ? 1 : 0);
    return layers[stage] * layerParameters(model, tp) + ends * embedding(model, tp);
  }

  // --- its memory (lib.cost.memory, lib.cost.kept)

  function stateBytes(parameters, { zero, pp, dp }) {
    const [w, g, o] = stack.state, on = (sharded) => parameters / (sharded ? dp : 1);
    return { weights: w * on(zero >= 3), gradients: g * on(zero >= 3 || (zero === 2 && pp === 1)), optimizer: o * on(zero >= 1) };
  }
  // Bytes per token that a layer keeps for backward, 16 bits each: norms 4 h, q k v and q k rotated, attention's output, MLP.
  const layerBytes = ({ h, a, kv, d, f, gated }, { tp }) => (2 * (4 * h + (a + 2 * kv) * d + (a + kv) * d + a * d + (gated ? 3 : 2) * f)) / tp;
  const keptBytes = (model, plan) => (plan.recompute === "full" ? (2 * model.h) / plan.tp : layerBytes(model, plan));
  // micro-batches whose activations a stage keeps at once
  const inFlight = ({ pp: p, m, v }, stage) => Math.min(m, v > 1 ? p * (1 + (p - 1 - 2 * stage) / (p * v)) : p - stage);
  // What comes and goes: the gradient of the largest matrix before it is added, and what ZeRO-3 gathers: a layer and the next,
  // or with a pipeline all of the stage.
  function workingBytes(model, { zero, tp, pp, dp }, parameters) {
    const [w, g] = stack.state, adding = (6 * model.h * Math.max(...mlp(model).map(([, m]) => m))) / tp;
    if (zero < 3) return adding;
    const gathered = (1 - 1 / dp) * parameters, shared = (some) => (dp > 1 ? some : 0);
    if (pp > 1) return Math.min(6 * shared(parameters), (w + g) * gathered) + adding;
    return Math.min(8 * shared(layerParameters(model, tp)), w * gathered + adding);
  }
  function stageMemory(model, plan, stage, layers) {
    const tokens = plan.b * SEQ, parameters = stageParameters(model, plan, stage, layers);
    const activations = layers[stage] * keptBytes(model, plan) * tokens * inFlight(plan, stage);
    // the loss comes before the last layer is recomputed: the larger counts
    const again = plan.recompute === "full" ? tokens * layerBytes(model, plan) : 0;
    const loss = stage === plan.pp - 1 ? (stack.logitBytes * tokens * model.V) / plan.tp : 0;
    return {
      ...stateBytes(parameters, plan), activations, logits: loss > again ? loss : 0,
      working: workingBytes(model, plan, parameters) + (loss > again ? 0 : again),
    };
  }
  const total = (parts) => Object.values(parts).reduce((a, b) => a + b, 0);
  // of the stage that needs most: the first, the second, the first of the fullest, or the last
  function memory(model, plan) {
    const layers = split(model.layers, plan.pp), last = plan.pp - 1;
    const stages = [0, Math.min(1, last), layers.indexOf(Math.max(...layers)), last].map((stage) => stageMemory(model, plan, stage, layers));
    return stages.reduce((most, one) => (total(one) > total(most) ? one : most));
  }

  // --- its collectives (lib.cost.network): latency, then bytes over bandwidth

  const latency = (n) => ((40 + 19 * Math.log2(n)) / 2) * 1e-6;
  // of a ring over n ranks, `stride` apart: those that share a node share its network cards
  function ringBandwidth({ link, nic, perNode }, n, stride) {
    const together = Math.min(n, Math.max(1, Math.floor(perNode / stride)));
    return together === n ? link : Math.min(link, together * nic * fitted.network);
  }
  // a reduce-scatter or an all-gather; an all-reduce is both
  const onePass = (gpu, n, stride, bytes) => (n === 1 ? 0 : latency(n) + (((n - 1) / n) * bytes) / ringBandwidth(gpu, n, stride));
  const send = ({ link, nic, perNode }, stride, bytes) => latency(2) + bytes / (stride < perNode ? link : nic * fitted.network);

  // --- its step (lib.cost.matmul, layer, sharding, step)

  // how much longer a product takes because its last wave of tiles, 128 x 256 outputs or half of that, does not fill the chip
  function waves(outputs) {
    const large = outputs / (128 * 256), half = 2 * large;
    return Math.min(Math.ceil(large) / large, (1.06 * Math.ceil(half)) / half);
  }
  // [forward, backward] seconds of (tokens, n) times each (n, m): arithmetic and moving overlap, so sqrt(arithmetic^2 + moved^2)
  function products(all, tokens, tp, gpu) {
    const flops = gpu.matmul * gpu.bf16, bandwidth = fitted.hbm * gpu.hbm, { ramp } = fitted, written = 2 * stack.gradientBytes;
    let forward = 0, backward = 0;
    for (const [inputs, outputs] of all) { // tp divides the longer side
      const [n, m] = outputs >= inputs ? [inputs, outputs / tp] : [inputs / tp, outputs];
      const arithmetic = (2 * tokens * n * m) / flops, passed = 2 * tokens * (n + m);
      const moved = (passed + 2 * n * m) / bandwidth, added = (passed + written * n * m) / bandwidth;
      forward += Math.hypot(arithmetic * waves((tokens * m) / gpu.sms) * (1 + ramp / n), moved);
      backward += Math.hypot(arithmetic * waves((tokens * n) / gpu.sms) * (1 + ramp / m), moved); // the inputs' gradient
      backward += Math.hypot(arithmetic * waves((n * m) / gpu.sms) * (1 + ramp / tokens), added); // the weights'
    }
    return [forward, backward];
  }
  // times are {matmul, attention, elementwise, tensor, launch}; weighted([2, times], ...) adds them up, each times its factor
  function weighted(...terms) {
    const sum = {};
    for (const [factor, times] of terms) for (const name in times) sum[name] = (sum[name] ?? 0) + factor * times[name];
    return sum;
  }
  // with the wait for a host that takes so long to launch the kernels
  const launched = (host, times) => ({ ...times, launch: Math.hypot(total(times), host) - total(times) });
  // {forward, again, backward} times of one layer for one micro-batch; again: what recomputation repeats
  function layer(model, { b, tp, recompute }, gpu) {
    const { h, a, kv, d, f, gated } = model, tokens = b * SEQ;
    const [forward, backward] = products(matrices(model), tokens, tp, gpu);
    const attention = (2 * SEQ * a * d * tokens) / tp / (gpu.flash * gpu.bf16); // half of 4 s a d: the mask is causal
    const bytes = (22 * h + (gated ? 6 : 4) * f + 4 * (a + 2 * kv) * d) / tp; // norms and residuals, activation, q k v arranged
    const elementwise = (fitted.unfused * tokens * bytes) / (fitted.hbm * gpu.hbm);
    const tensor = 2 * 2 * onePass(gpu, tp, 1, 2 * tokens * h) * (1 - stack.tpOverlap); // 2 all-reduces
    const host = fitted.launch * stack.launch * (tp > 1 ? 1.3 : 1);
    const there = launched(host, { matmul: forward, attention, elementwise, tensor });
    // fused backward computes the scores again; with sequence parallelism backward gathers once more
    const back = { matmul: backward, attention: 2.5 * attention, elementwise: 1.5 * elementwise, tensor: (tp > 1 ? 1.5 : 1) * tensor };
    return { forward: there, again: recompute === "full" ? there : {}, backward: launched(1.5 * host, back) };
  }
  // the last product and the loss, forward and backward: 24 bytes per logit
  function vocabulary({ h, V }, { b, tp }, gpu) {
    const [forward, backward] = products([[h, V]], b * SEQ, tp, gpu);
    return { matmul: forward + backward, elementwise: (24 * b * SEQ * V) / tp / (fitted.hbm * gpu.hbm) };
  }
  // an activation, or its gradient, to the next stage: the slowest message. Each tensor rank sends its part.
  function message({ h }, { b, tp, pp, dp }, gpu) {
    if (pp === 1) return 0;
    const stride = pp * tp * dp > gpu.perNode ? Math.max(tp * dp, gpu.perNode) : tp * dp;
    return send(gpu, stride, (2 * b * SEQ * h) / tp);
  }
  // Data ranks exchange gradients and weights, and nothing else runs. one: layer's times; layers: of the fullest stage.
  function sharding(model, { tp, pp, dp, v, m, zero }, gpu, one, layers) {
    const { hidden } = fitted, parameters = layerParameters(model, tp), rest = embedding(model, tp), gradient = stack.gradientBytes;
    const pass = (some, bytes) => onePass(gpu, dp, tp, bytes * some);
    const forward = total(one.forward), backward = total(one.again) + total(one.backward);
    if (zero === 3 && pp === 1) { // each layer, each micro-batch: gather, gather again for backward, reduce-scatter
      const gather = pass(parameters, 2), reduce = pass(parameters, gradient);
      const late = Math.max(0, gather - hidden * forward) + Math.max(0, gather + reduce - hidden * backward);
      return layers * m * late + pass(rest, 2 + gradient);
    }
    const scattered = pass(layers * parameters + rest, gradient), gathered = pass(layers * parameters + rest, zero ? 2 : gradient);
    // without a pipeline ZeRO-2 scatters the gradients of each micro-batch
    const each = zero === 2 && pp === 1 ? (m - 1) * Math.max(0, scattered - hidden * layers * backward) : 0;
    const seconds = scattered + gathered; // what is not hidden, and at least the last layer's
    return each + Math.max(seconds - hidden * layers * (forward + backward), seconds / (layers * v));
  }
  // step = (m max(S) + (sum of the other stages' S) / v + sharding + optimizer) x factor x (1 + straggler log2(nodes))
  function stepSeconds(model, plan, gpu, one = layer(model, plan, gpu)) {
    const { tp, pp: p, dp, v, m, zero } = plan, counts = split(model.layers, p), fullest = Math.max(...counts);
    const each = weighted([1, one.forward], [1, one.again], [1, one.backward]);
    const last = weighted([1 / stack.factor, vocabulary(model, plan, gpu)]); // the factor leaves it as it is
    const wait = fitted.exposed * message(model, plan, gpu);
    const waits = upTo(p).map((i) => (2 * v - (i === 0 || i === p - 1 ? 1 : 0)) * wait); // one from each side, but at the ends
    const S = counts.map((n, i) => n * total(each) + (i === p - 1 ? total(last) : 0)), waited = S.map((busy, i) => busy + waits[i]);
    const slow = waited.indexOf(Math.max(...waited));
    const held = fullest * layerParameters(model, tp) + embedding(model, tp);
    const seconds = {
      ...weighted([m * counts[slow], each], [slow === p - 1 ? m : 0, last]),
      message: m * waits[slow],
      bubble: (S.reduce((a, b) => a + b) - S[slow]) / v + 2 * (p - 1) * wait,
      sharding: sharding(model, plan, gpu, one, fullest),
      optimizer: (40 * held) / (zero ? dp : 1) / (fitted.hbm * gpu.hbm), // 40 bytes read or written per parameter
    };
    return weighted([stack.factor * (1 + fitted.straggler * Math.log2(Math.max(1, (tp * p * dp) / gpu.perNode))), seconds]);
  }

  // --- the best plan (lib.cost.search)

  const divisors = (n) => upTo(n).map((d) => d + 1).filter((d) => n % d === 0);
  // v: more than one stage per rank only where stages are equal and pp divides m
  function chunks(layers, pp, m) {
    const shared = slots(layers, pp);
    return pp === 1 || shared % pp || m % pp ? [1] : divisors(shared / pp).filter((v) => pp * v <= layers);
  }
  function* planSpace({ layers, a }, gpus, batch) {
    for (const tp of [1, 2, 4, 8]) if (a % tp === 0 && gpus % tp === 0) {
      for (const pp of divisors(gpus / tp)) if (pp <= layers && Math.min(...split(layers, pp)) > 0) {
        const dp = gpus / (tp * pp);
        for (const b of [1, 2, 4, 8, 16, 32]) if (batch % (dp * b) === 0) {
          for (const v of chunks(layers, pp, batch / (dp * b))) for (const zero of dp > 1 ? [0, 1, 2, 3] : [0]) {
            for (const recompute of ["none", "full"]) yield planOf(batch, b, tp, pp, dp, v, zero, recompute);
          }
        }
      }
    }
  }
  // the fastest that fits, of equal ones the lowest stage of ZeRO, then the smallest; null if none fits
  const once = new Map(); // a search is done once for a job
  function bestPlan(name, kind, gpus, batch) {
    const job = `${name} ${kind} ${gpus} ${batch}`, model = models[name], gpu = machines[kind], layers = {};
    if (!once.has(job)) {
      const fitting = [...planSpace(model, gpus, batch)].map((plan) => ({ plan, bytes: total(memory(model, plan)) }))
        .filter(({ bytes }) => bytes <= FITS * gpu.memory)
        .map(({ plan, bytes }) => {
          const one = layers[[plan.tp, plan.b, plan.recompute]] ??= layer(model, plan, gpu); // the same whatever pp, dp, v and ZeRO
          return { plan, bytes, seconds: total(stepSeconds(model, plan, gpu, one)) };
        });
      fitting.sort((one, other) => one.seconds - other.seconds || one.plan.zero - other.plan.zero || one.bytes - other.bytes);
      once.set(job, fitting[0]?.plan ?? null);
    }
    return once.get(job);
  }

  return {
    allReduce, hierarchical, ring, recipes, rankState, zeroPasses, perToken, dataParallelStep, hidden, breakEvenRows,
    bucketTimes, popularity, droppedAndEmpty, schedules, simulate, bubbleFormula,
    GIB, FITS, models, machines, depths, planOf, nameOf, problem, memory, stepSeconds, planSpace, bestPlan,
  };
})();
if (typeof module !== "undefined") module.exports = formulas; // for the test, which has no browser
