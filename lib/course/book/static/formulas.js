// The formulas of the figures with sliders, and the simulator of pipeline schedules. A test compares them with lib's.
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

  return {
    allReduce, hierarchical, ring, recipes, rankState, zeroPasses, perToken, dataParallelStep, hidden, breakEvenRows,
    bucketTimes, popularity, droppedAndEmpty, schedules, simulate, bubbleFormula,
  };
})();
if (typeof module !== "undefined") module.exports = formulas; // for the test, which has no browser
