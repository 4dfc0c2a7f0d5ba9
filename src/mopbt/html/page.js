"use strict";
// Draws runs from the JSON in the page. Texts of a run become text nodes or attributes, never markup,
// so that no name or message can inject elements.
(() => {
  const ARROWS = { max: "↑", min: "↓" };
  const COLORS = 8;
  const SCHEDULES = 40; // drawn at most
  const TABLE_ROWS = 300; // shown before "show more" is pressed
  const REACH = 26; // pixels within which a click selects the nearest model

  let data = JSON.parse(document.getElementById("data").textContent);
  const chosen = { run: 0, job: null, byHand: false };
  const marked = new Set(); // names in the list of runs
  const drawn = new Map(); // section -> the data it was drawn from
  let allRows = false;
  let connection = "connecting";

  // ---- elements and texts ----

  function dress(element, attributes) {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (typeof value === "function") element.addEventListener(name, value);
      else element.setAttribute(name, value === true ? "" : String(value));
    }
    return element;
  }

  const given = (children) => children.flat().filter((child) => child !== null && child !== undefined);

  function make(tag, attributes = {}, ...children) {
    const element = dress(document.createElement(tag), attributes);
    element.append(...given(children));
    return element;
  }

  function shape(tag, attributes = {}, ...children) {
    const element = dress(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes);
    element.append(...given(children));
    return element;
  }

  const whole = (count) => count.toLocaleString("en");
  const plural = (count, what) => `${whole(count)} ${what}${count === 1 ? "" : "s"}`;
  const short = (words, most = 34) => (words.length > most ? `${words.slice(0, most - 1)}…` : words);
  const round = (v) => Math.round(v * 10) / 10;
  const clamp = (v, lo, hi) => Math.min(Math.max(v, lo), hi);
  const trouble = (words) => make("p", { class: "trouble" }, words);
  const small = (words) => make("p", { class: "soft small" }, words);
  const say = (words) => { document.getElementById("status").textContent = words; };

  function text(value, digits = 4) {
    if (typeof value !== "number") return value === undefined ? "?" : String(value);
    if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
    const rounded = Number(value.toPrecision(digits));
    return Math.abs(value) < 1e-3 ? rounded.toExponential() : String(rounded);
  }

  // A number with its standard error, to the digits that the error leaves certain: 0.923 ± 0.006.
  function withError(value, error, digits = 4) {
    if (typeof value !== "number" || !error || !(error[0] > 0)) return text(value, digits);
    const power = Math.floor(Math.log10(error[0]));
    const decimals = clamp(-power + (error[0] < 2 * 10 ** power ? 1 : 0), 0, 100);
    return `${value.toFixed(decimals)} ± ${error[0].toFixed(decimals)}`;
  }

  function clock(seconds) {
    if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
    const total = Math.round(seconds), pad = (n) => String(n).padStart(2, "0");
    const hours = Math.floor(total / 3600), minutes = Math.floor(total / 60) % 60;
    return hours ? `${hours}:${pad(minutes)}:${pad(total % 60)} h` : `${minutes}:${pad(total % 60)} min`;
  }

  // Formats the numbers of a column in one way: with enough decimals to distinguish them, or, if their
  // magnitudes are very different, all as powers of ten.
  function aligned(values, { magnitudes = false } = {}) {
    if (!values.every((v) => typeof v === "number")) return values.map((v) => text(v));
    if (values.every((v) => Number.isInteger(v))) return values.map(String);
    const span = Math.max(...values) - Math.min(...values) || Math.abs(values[0]) || 1;
    const least = Math.min(...values.map(Math.abs).filter(Boolean)), decimals = 3 - Math.floor(Math.log10(span));
    if (magnitudes && least < 1e-3 && least * 100 < span) return values.map((v) => (v ? v.toExponential(2) : "0"));
    if (decimals > 7 || decimals < -5 || (magnitudes && least * 100 < span)) return values.map((v) => text(v));
    return values.map((v) => v.toFixed(clamp(decimals, 0, 7)));
  }

  // ---- sections ----

  // A section is redrawn only if its data have changed. Focus, scrolling and open details are kept.

  function section(id, from, build) {
    let node = document.getElementById(id);
    if (!node) document.getElementById("main").append(node = make("section", { id }));
    const key = JSON.stringify([from, node.clientWidth]);
    if (drawn.get(id) === key) return;
    drawn.set(id, key);
    const restore = remembered(node);
    node.replaceChildren(...given(build(node.clientWidth)));
    restore();
  }

  function remembered(node) {
    const focused = node.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const scrolled = [...node.querySelectorAll(".scroll")].map((box) => [box.scrollTop, box.scrollLeft]);
    const open = new Set([...node.querySelectorAll("details[open]")].map((box) => box.dataset.key));
    return () => {
      node.querySelectorAll(".scroll").forEach((box, i) => { [box.scrollTop, box.scrollLeft] = scrolled[i] ?? [0, 0]; });
      node.querySelectorAll("details").forEach((box) => { box.open = open.has(box.dataset.key); });
      if (focused) node.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    };
  }

  function drop(id) {
    document.getElementById(id)?.remove();
    drawn.delete(id);
  }

  function more(key, title, ...children) {
    return make("details", { "data-key": key }, make("summary", { "data-key": `${key}-summary` }, title), ...children);
  }

  // A table with a caption. `left` lists the columns of text, `row` is the selected row.
  function table(name, heads, rows, { left = [], row = -1, plain = false, key = "table" } = {}) {
    const kind = (i) => (left.includes(i) ? "text" : null);
    const body = rows.map((cells, r) =>
      make("tr", { class: r === row ? "chosen" : null }, cells.map((cell, i) => make("td", { class: kind(i) }, cell))));
    const made = make("table", { class: plain ? "plain" : null },
      make("caption", { class: "hidden" }, name),
      make("thead", {}, make("tr", {}, heads.map((head, i) => make("th", { class: kind(i), scope: "col" }, head)))),
      make("tbody", {}, body));
    return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name, "data-key": key }, made);
  }

  function pairs(rows) {
    const row = ([name, value]) =>
      make("tr", {}, make("th", { class: "text", scope: "row" }, name), make("td", { class: "text wrap" }, value));
    return make("table", { class: "plain pairs" }, make("tbody", {}, rows.map(row)));
  }

  // ---- axes ----

  function ticks(lo, hi, most) {
    const raw = (hi - lo) / most, power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= raw * 0.999);
    const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)), made = [];
    for (let i = Math.ceil(lo / step - 1e-9); i * step <= hi + step * 1e-9; i++) {
      const at = i * step;
      made.push({ at, text: decimals > 6 || Math.abs(at) >= 1e6 ? text(at) : at.toFixed(decimals) });
    }
    return made;
  }

  // An axis is {lo, hi, label, ticks?}. X and Y of the frame convert values to pixels.
  function frame(width, height, x, y, label, { grid = true, role = "img" } = {}) {
    const xs = x.ticks || ticks(x.lo, x.hi, Math.max(2, Math.floor(width / 85)));
    const ys = y.ticks || ticks(y.lo, y.hi, Math.max(2, Math.floor(height / 60)));
    const left = Math.min(96, 14 + 6.4 * Math.max(...ys.map((t) => t.text.length), 1));
    const top = 24, w = width - left - 12, h = height - top - 40;
    const X = (v) => left + ((v - x.lo) / (x.hi - x.lo)) * w;
    const Y = (v) => top + h - ((v - y.lo) / (y.hi - y.lo)) * h;
    const root = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role, "aria-label": label });
    if (grid) root.append(shape("path", { class: "grid", d: lattice(xs, ys, X, Y, { left, top, w, h }) }));
    root.append(
      ...xs.map((t) => shape("text", { x: X(t.at), y: top + h + 16, "text-anchor": "middle" }, t.text)),
      ...ys.map((t) => shape("text", { x: left - 6, y: Y(t.at) + 4, "text-anchor": "end" }, t.text)),
      shape("path", { class: "axis", d: `M${left} ${top}v${h}h${w}` }),
      shape("text", { class: "name", x: left + w, y: height - 6, "text-anchor": "end" }, x.label),
      shape("text", { class: "name", x: 0, y: 12 }, y.label));
    return { root, X, Y, left, top, w, h };
  }

  function lattice(xs, ys, X, Y, { left, top, w, h }) {
    return [...xs.map((t) => `M${round(X(t.at))} ${top}v${h}`), ...ys.map((t) => `M${left} ${round(Y(t.at))}h${w}`)].join("");
  }

  const seen = (v, [lo, hi]) => v >= lo && v <= hi;

  function across({ name, direction }, [lo, hi]) {
    return { lo, hi, label: direction === "max" ? `${short(name)}  (better →)` : `(← better)  ${short(name)}` };
  }

  function upwards({ name, direction }, [lo, hi]) {
    return { lo, hi, label: `${short(name)}  (better ${ARROWS[direction]})` };
  }

  // ---- selecting a model ----

  function choose(run, job) {
    Object.assign(chosen, { run, job, byHand: true });
    render();
    const point = data.runs[run].front.find((p) => p.job === job);
    if (point) say(`Selected: ${describe(data.runs[run], point)}`);
  }

  const isChosen = (run, job) => run === chosen.run && job === chosen.job;

  function describe(run, point) {
    return `model ${point.job}, ${run.objectives.map((o, k) => `${o.name} ${scoreOf(run, point, k)}`).join(", ")}`;
  }

  const scoreOf = (run, p, k, digits = 4) => withError(p.objectives[k], p.errors[run.objectives[k].name], digits);
  const hasErrors = (run) => run.observed !== null;

  // An objective as models are compared: at the worse bound of its interval where that is known.
  function boundOf(run, p, k) {
    const { name, direction } = run.objectives[k], bar = p.errors[name];
    return bar ? bar[direction === "max" ? 1 : 2] : p.objectives[k];
  }

  // The default selection: the model with the best sum of scores, each relative to its range on the front.
  function balanced(run) {
    const ends = run.objectives.map((_, k) => run.front.map((p) => boundOf(run, p, k))).map((c) => [Math.min(...c), Math.max(...c)]);
    const share = (p) => run.objectives.reduce((sum, { direction }, k) => {
      const [lo, hi] = ends[k], at = hi > lo ? (boundOf(run, p, k) - lo) / (hi - lo) : 0;
      return sum + (direction === "max" ? at : -at);
    }, 0);
    return run.front.reduce((best, p) => (!best || share(p) > share(best) ? p : best), null);
  }

  function settle() {
    chosen.run = Math.min(chosen.run, data.runs.length - 1);
    const run = data.runs[chosen.run];
    if (chosen.byHand && run.front.some((p) => p.job === chosen.job)) return;
    if (chosen.byHand) say(`Model ${chosen.job} has left the front because another model dominates it.`);
    Object.assign(chosen, { byHand: false, job: balanced(run)?.job ?? null });
  }

  // Models as {node, run, job}: the Tab key stops at one of them, arrow keys move, Enter selects.
  function selectable(root, items) {
    const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    const go = (i) => {
      items.forEach(({ node }) => node.setAttribute("tabindex", "-1"));
      items[i].node.setAttribute("tabindex", "0");
      items[i].node.focus();
    };
    const press = (i) => (event) => {
      if (event.key in moves) go(clamp(i + moves[event.key], 0, items.length - 1));
      else if (event.key === "Home") go(0);
      else if (event.key === "End") go(items.length - 1);
      else if (event.key === "Enter" || event.key === " ") choose(items[i].run, items[i].job);
      else return;
      event.preventDefault();
    };
    items.forEach(({ node, run, job }, i) => {
      const pressed = isChosen(run, job) ? "true" : "false";
      root.append(dress(node, { role: "button", tabindex: "-1", "data-job": job, "aria-pressed": pressed, keydown: press(i) }));
    });
    (items.find((item) => isChosen(item.run, item.job)) || items[0])?.node.setAttribute("tabindex", "0");
  }

  // Models as {x, y, run, job}: a click selects the nearest.
  function clickable(root, items) {
    root.addEventListener("click", (event) => {
      const box = root.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
      const distance = (item) => Math.hypot(item.x - x, item.y - y);
      const best = items.reduce((least, item) => (!least || distance(item) < distance(least) ? item : least), null);
      if (best && distance(best) <= REACH) choose(best.run, best.job);
    });
  }

  function ringed(root, items, r) {
    const item = items.find(({ run, job }) => isChosen(run, job));
    if (item) root.append(shape("circle", { class: "ring", cx: item.x, cy: item.y, r }));
  }

  // ---- the front ----

  const MARKS = [
    (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
    (x, y, r) => `M${x - r * 0.88} ${y - r * 0.88}h${r * 1.76}v${r * 1.76}h${-r * 1.76}z`,
    (x, y, r) => `M${x} ${y - r * 1.2}l${r * 1.15} ${r * 2}h${-r * 2.3}z`,
    (x, y, r) => `M${x} ${y - r * 1.25}l${r * 1.25} ${r * 1.25}l${-r * 1.25} ${r * 1.25}l${-r * 1.25} ${-r * 1.25}z`,
    (x, y, r) => `M${x} ${y + r * 1.2}l${r * 1.15} ${-r * 2}h${-r * 2.3}z`,
  ];
  const mark = (i, x, y, r) => MARKS[i % MARKS.length](round(x), round(y), r);
  const color = (i) => `c${i % COLORS}`;

  function sign(kind, d) {
    return shape("svg", { width: 16, height: 12, "aria-hidden": "true" }, shape("path", { class: kind, d }));
  }

  function pairsOf(run) {
    const places = [...run.objectives.keys()];
    return places.length === 1 ? [[-1, 0]] : places.flatMap((x) => places.filter((y) => y > x).map((y) => [x, y])); // -1 is the step
  }

  // The edge of what the front of two objectives dominates.
  function stairs(points, rise) {
    const sorted = [...points].sort((a, b) => a.x - b.x || a.y - b.y);
    const step = (x, y) => (rise ? `V${y}H${x}` : `H${x}V${y}`);
    return sorted.map((p, i) => (i ? step(round(p.x), round(p.y)) : `M${round(p.x)} ${round(p.y)}`)).join("");
  }

  // All other evaluations, as five paths, because an element for each would be slow.
  function dots(run, x, y, at) {
    const { scores, steps, infeasible } = run.others, parts = { infeasible: [], e1: [], e2: [], e3: [], e4: [] };
    const xs = x < 0 ? steps : scores[x], ys = scores[y];
    steps.forEach((step, i) => {
      if ((x >= 0 && !seen(xs[i], run.views[x])) || !seen(ys[i], run.views[y])) return;
      const age = 1 + Math.floor((4 * (step - 1)) / run.steps);
      parts[infeasible[i] ? "infeasible" : `e${clamp(age, 1, 4)}`].push(`M${round(at.X(xs[i]))} ${round(at.Y(ys[i]))}h0`);
    });
    return Object.entries(parts).map(([kind, d]) => shape("path", { class: `dots ${kind}`, d: d.join("") }));
  }

  // A scatter plot of fronts: of one run with all its evaluations, or of several runs without them.
  function scatter(width, runs, indices, [x, y], views, name) {
    const { objectives, steps } = runs[0], alone = runs.length === 1;
    const wide = x < 0 ? { lo: 0, hi: steps, label: "step" } : across(objectives[x], views[x]);
    const height = Math.round(clamp(width * 0.74, 250, 540));
    const at = frame(width, height, wide, upwards(objectives[y], views[y]), name, { role: "group" });
    if (alone) at.root.append(...dots(runs[0], x, y, at));
    const items = runs.flatMap((run, r) => {
      const own = alone ? "" : ` ${color(r)}`;
      const points = modelsIn(run, indices[r], at, x, y, alone ? { own } : { own, shape: r, name: `${run.name}: ` });
      const rise = objectives[0].direction === "max";
      if (objectives.length === 2 && alone && run.observed) {
        const seenAt = run.observed.map((scores) => ({ x: at.X(scores[x]), y: at.Y(scores[y]) }));
        at.root.append(shape("path", { class: "stairs observed", d: stairs(seenAt, rise) }));
      }
      if (alone && hasErrors(run)) at.root.append(shape("path", { class: "bars", d: barsOf(run, at, x, y) }));
      if (objectives.length === 2) at.root.append(shape("path", { class: `stairs${own}`, d: stairs(points, rise) }));
      return points.sort((a, b) => a.x - b.x);
    });
    selectable(at.root, items);
    clickable(at.root, items);
    ringed(at.root, items, 10);
    return at.root;
  }

  // The intervals of the models, as one path of lines across and upwards.
  function barsOf(run, at, x, y) {
    const bar = (p, k) => (k < 0 ? null : p.errors[run.objectives[k].name]);
    return run.front.map((p) => {
      const wide = bar(p, x), high = bar(p, y), cx = round(at.X(x < 0 ? p.step : p.objectives[x])), cy = round(at.Y(p.objectives[y]));
      return (wide ? `M${round(at.X(wide[1]))} ${cy}H${round(at.X(wide[2]))}` : "") +
        (high ? `M${cx} ${round(at.Y(high[1]))}V${round(at.Y(high[2]))}` : "");
    }).join("");
  }

  function modelsIn(run, index, at, x, y, { own, shape: form = 0, name = "" }) {
    const crowd = run.front.length / at.w, size = crowd <= 0.08 ? 5 : crowd <= 0.25 ? 3.8 : 2.8;
    return run.front.map((p) => {
      const place = { x: at.X(x < 0 ? p.step : p.objectives[x]), y: at.Y(p.objectives[y]) };
      const label = name + describe(run, p), key = `p${x}-${y}-${index}-${p.job}`;
      const attributes = { class: `point${own}`, d: mark(form, place.x, place.y, size), "data-key": key, "aria-label": label };
      return { ...place, run: index, job: p.job, node: shape("path", attributes, shape("title", {}, label)) };
    });
  }

  // Parallel coordinates for three or more objectives: an axis for each, with better scores at the top.
  function parallel(width, runs, indices, views, name) {
    const { objectives } = runs[0], alone = runs.length === 1, last = objectives.length - 1;
    const height = 340, top = 44, low = height - 28, side = Math.min(32, width / 8);
    // Without the margins of a scatter plot, an axis ends at the worst and the best value.
    const ends = views.map(([lo, hi]) => {
      const margin = (0.04 / 1.08) * (hi - lo);
      return [lo + margin, hi - margin].map((v) => (Math.abs(v) < 1e-9 * (hi - lo) ? 0 : v)); // no 8.67e-19
    });
    const X = (k) => side + (k / last) * (width - 2 * side);
    const Y = (k, v) => {
      const [lo, hi] = ends[k], share = (v - lo) / (hi - lo);
      return top + (low - top) * (objectives[k].direction === "max" ? 1 - share : share);
    };
    const way = (scores) => scores.map((v, k) => `${k ? "L" : "M"}${round(X(k))} ${round(Y(k, v))}`).join("");
    const root = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": name });
    if (alone) root.append(shape("path", { class: "faint", d: lately(runs[0], 300).map(way).join("") }));
    objectives.forEach(({ name: title, direction }, k) => {
      const anchor = k === 0 ? "start" : k === last ? "end" : "middle", x = k === 0 ? 0 : k === last ? width : X(k);
      const [worst, best] = direction === "max" ? ends[k] : [...ends[k]].reverse();
      root.append(
        shape("path", { class: "axis", d: `M${X(k)} ${top}V${low}` }),
        shape("text", { class: "name", x, y: 12 + 14 * (k % 2), "text-anchor": anchor }, short(title, 20)),
        shape("text", { x, y: top - 5, "text-anchor": anchor }, text(best, 3)),
        shape("text", { x, y: low + 15, "text-anchor": anchor }, text(worst, 3)));
    });
    selectable(root, runs.flatMap((run, r) => linesOf(run, indices[r], way, alone ? "" : ` ${color(r)}`)));
    root.append(...root.querySelectorAll(".way.chosen")); // on top
    return root;
  }

  function linesOf(run, index, way, own) {
    return run.front.map((p) => {
      const label = (own ? `${run.name}: ` : "") + describe(run, p), kind = `way${own}${isChosen(index, p.job) ? " chosen" : ""}`;
      const attributes = { class: kind, d: way(p.objectives), "data-key": `w-${index}-${p.job}`, "aria-label": label };
      const node = shape("path", { ...attributes, click: () => choose(index, p.job) }, shape("title", {}, label));
      return { run: index, job: p.job, node };
    });
  }

  function lately(run, most) {
    const { scores, steps } = run.others;
    const rows = [...steps.keys()].slice(-most).map((i) => scores.map((column) => column[i]));
    return rows.filter((row) => row.every((v, k) => seen(v, run.views[k])));
  }

  function pictures(width, runs, indices, views) {
    const name = `${runs.length > 1 ? "Fronts" : "Front"}: models as points; arrow keys move between them, Enter selects`;
    if (runs[0].objectives.length > 3) return parallel(width, runs, indices, views, name);
    const all = pairsOf(runs[0]), side = all.length > 1 && width > 600 ? Math.floor((width - 46) / 3) : width;
    const panels = make("div", { class: all.length > 1 ? "panels" : null },
      all.map((pair) => scatter(side, runs, indices, pair, views, name)));
    if (all.length < 3) return panels;
    const lines = "Front: models as lines over one axis for each objective, better values at the top; arrow keys move, Enter selects";
    return make("div", {}, panels, make("h3", {}, "All objectives"), parallel(width, runs, indices, views, lines));
  }

  function legendOf(run) {
    const { of, outside, steps, infeasible } = run.others;
    const entry = (picture, words) => make("li", {}, picture, words);
    const thin = of > steps.length ? ` (${whole(steps.length)} of them drawn)` : "";
    return make("ul", { class: "legend" },
      entry(sign("point", mark(0, 8, 6, 5)), `${plural(run.front.length, "model")} on the ${hasErrors(run) ? "pessimistic front" : "front"}`),
      hasErrors(run) ? entry(sign("bars", "M1 6H15M8 1V11"), `intervals of ${text(100 * run.confidence, 3)} %`) : null,
      hasErrors(run) && run.objectives.length === 2
        ? entry(sign("stairs observed", "M1 2H8V10H15"), `observed front (${plural(run.observed.length, "model")})`) : null,
      entry(sign("dots e3", "M8 6h0"), `${plural(of, "dominated evaluation")}${thin}, early ones lighter`),
      infeasible.some(Boolean) ? entry(sign("dots infeasible", "M8 6h0"), "gray: violates a constraint") : null,
      outside ? entry(null, `${plural(outside, "evaluation")} outside the view`) : null);
  }

  // Metrics such as test/accuracy of an objective accuracy.
  function namesakes(run, objective) {
    const names = new Set(run.front.flatMap((p) => Object.keys(p.scores)));
    return [...names].filter((name) => name.endsWith(`/${objective}`));
  }

  function metricColumn(run, name) {
    const known = run.front.map((p) => p.scores[name]);
    if (known.every((v) => typeof v === "number") && !run.front.some((p) => p.errors[name])) return aligned(known);
    return run.front.map((p) => (name in p.scores ? withError(p.scores[name], p.errors[name]) : "–"));
  }

  function frontTable(run, index) {
    const scores = run.objectives.map(({ name }, k) => (run.front.some((p) => p.errors[name])
      ? run.front.map((p) => scoreOf(run, p, k)) : aligned(run.front.map((p) => p.objectives[k]))));
    const own = (k) => run.front.map(({ job }) => valueAt(run, k, stretchOf(run, job).config[k]));
    const values = run.space.map((_, k) => aligned(own(k), { magnitudes: true }));
    const metrics = run.objectives.flatMap((o, k) => [[`${o.name} ${ARROWS[o.direction]}`, scores[k]],
      ...namesakes(run, o.name).map((name) => [name, metricColumn(run, name)])]);
    const shown = run.front.slice(0, allRows ? Infinity : TABLE_ROWS), rest = run.front.length - shown.length;
    const button = (job) => make("button", {
      class: "link", "data-key": `row-${job}`, "aria-label": `select model ${job}`, click: () => choose(index, job),
    }, String(job));
    const columns = [...metrics.map(([, column]) => column), ...values];
    const cells = (p, i) => [button(p.job), ...columns.map((column) => column[i]), String(p.step), String(p.trial)];
    const titles = [...metrics.map(([title]) => title), ...run.space.map((s) => s.name)];
    const name = "Models of the front, with the hyperparameters of their last interval";
    const row = index === chosen.run ? shown.findIndex((p) => p.job === chosen.job) : -1;
    const showAll = () => { allRows = true; render(); };
    return [
      table(name, ["model id", ...titles, "step", "trial"], shown.map(cells), { row, key: "front-table" }),
      rest > 0 ? make("button", { click: showAll, "data-key": "all-rows" }, `show ${whole(rest)} more`) : null,
    ];
  }

  function drawFront(run, index) {
    const { front, observed, warning, others, views, stretches, loading } = run;
    section("front", [front, observed, warning, others, views, stretches, loading, chosen, allRows], (width) => {
      const few = run.objectives.length <= 2, side = few && width > 800 ? Math.floor((width - 26) * 0.615) : width;
      return [
        make("h2", {}, "Front"),
        warning ? trouble(warning) : null,
        small(hasErrors(run)
          ? "The models that no other evaluated model dominates at the bounds of its intervals, so that a lucky measurement is not enough. " +
            "Select a point to see its model."
          : "The models that no other evaluated model dominates. Select a point to see its model."),
        make("div", { class: few ? "beside" : "beside below" },
          make("div", { class: "picture" }, pictures(side, [run], [index], views), legendOf(run)),
          modelPanel(run),
          make("div", { class: "list" }, frontTable(run, index))),
      ];
    });
  }

  // ---- one model ----

  const valueAt = (run, k, position) => (run.space[k].values ? run.space[k].values[position] : position);
  const valuesAt = (run, config) => config.map((position, k) => text(valueAt(run, k, position)));

  function stretchOf(run, job) {
    const read = ([end, start, trial, from, to, config]) => [end, { job: end, start, trial, begin: from, end: to, config }];
    run.byJob ??= new Map(run.stretches.map(read));
    return run.byJob.get(job);
  }

  // The stretches of a model's lineage, first to last. `before` is the trial that it was copied from.
  function wayOf(run, job) {
    const way = [];
    for (let s = stretchOf(run, job); s; s = s.start === null ? null : stretchOf(run, s.start)) way.unshift(s);
    return way.map((s, i) => ({ ...s, before: i && way[i - 1].trial !== s.trial ? way[i - 1].trial : null }));
  }

  function scheduleOf(run, job) {
    const schedule = [];
    for (const { begin, end, config } of wayOf(run, job)) {
      const last = schedule.at(-1);
      if (last && last.end === begin && config.every((v, k) => v === last.config[k])) last.end = end;
      else schedule.push({ begin, end, config });
    }
    return schedule;
  }

  function originOf(run, job) {
    const way = wayOf(run, job), taken = way.filter((s) => s.before !== null);
    const parts = taken.map((s, i) => `trial ${s.trial}${i ? "" : " copied it"} at step ${s.begin}`);
    const shown = parts.length > 5 ? [parts[0], `… (${parts.length} copies in total)`, parts.at(-1)] : parts;
    return `It started as trial ${way[0].trial}${parts.length ? `; ${shown.join(", ")}` : ""}.`;
  }

  function copyable(words, what) {
    const code = make("pre", { tabindex: "0", "aria-label": what, "data-key": `code-${what}` }, words);
    const copy = async (event) => {
      try {
        await navigator.clipboard.writeText(words);
        event.target.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(code); // without permission to copy, select it instead
      }
    };
    return make("div", { class: "code" }, code,
      make("button", { "data-key": `copy-${what}`, "aria-label": `copy the ${what}`, click: copy }, "copy"));
  }

  function modelPanel(run) {
    const point = run.front.find((p) => p.job === chosen.job);
    const panel = (...children) => make("div", { class: "model", id: "model" }, ...children);
    if (!point) return panel(make("h2", {}, "No model yet"), small("The front is still empty."));
    const { job, trial, step, violation } = point, { python, shell } = run.loading;
    const steps = scheduleOf(run, job).map((s) => [`${s.begin}–${s.end}`, ...valuesAt(run, s.config)]);
    const schedule = table(`Hyperparameter schedule of model ${job}`, ["steps", ...run.space.map((s) => s.name)], steps,
      { plain: true, key: "schedule-table" });
    return panel(
      make("h2", {}, `Model ${job}`),
      small(`Trial ${trial}, trained to step ${step}. ${originOf(run, job)}`),
      violation ? trouble(`No model satisfies ${run.constraints.join(" and ")}; this one comes closest ` +
        `(violation ${text(violation, 2)}).`) : null,
      make("h3", {}, "Metrics"), pairs(scoresOf(run, point)),
      make("h3", {}, "Hyperparameter schedule"), schedule,
      make("h3", {}, "Load the model"), copyable(python[0] + job + python[1], "Python code"),
      make("h3", {}, "Export the model"), copyable(shell[0] + job + shell[1], "command"));
  }

  function scoresOf(run, point) {
    const row = (name) => [name, withError(point.scores[name], point.errors[name], 6)];
    const rows = [], seen = new Set();
    run.objectives.forEach((o, k) => {
      const same = Object.keys(point.scores).filter((name) => name.endsWith(`/${o.name}`));
      rows.push([`${o.name} ${ARROWS[o.direction]}`, scoreOf(run, point, k, 6)], ...same.map(row));
      [o.name, ...same].forEach((name) => seen.add(name));
    });
    return [...rows, ...Object.keys(point.scores).filter((name) => !seen.has(name)).map(row)];
  }

  // ---- hypervolume ----

  function curves(width, lines, label, virtual) {
    const ends = lines.map((line) => line.at(-1) || [0, 0]);
    const far = Math.max(...ends.map((e) => e[0]), 1e-9), high = Math.max(...ends.map((e) => e[1]), 1e-9);
    const [unit, units] = far > 7200 ? [3600, "hours"] : far > 180 ? [60, "minutes"] : [1, "seconds"];
    const x = { lo: 0, hi: far / unit, label: `${virtual ? "virtual time" : "time"} (${units})` }, y = { lo: 0, hi: high * 1.05, label: "hypervolume" };
    const at = frame(width, Math.round(clamp(width * 0.36, 210, 320)), x, y, label);
    lines.forEach((line, i) => {
      const start = line.length ? `M${round(at.X(line[0][0] / unit))} ${round(at.Y(0))}` : "";
      const d = start + line.map(([t, v]) => `H${round(at.X(t / unit))}V${round(at.Y(v))}`).join("");
      at.root.append(shape("path", { class: `curve${lines.length > 1 ? ` ${color(i)}` : ""}`, d }));
    });
    return at.root;
  }

  const cornerOf = (reference) => Object.entries(reference).map(([name, v]) => `${name} ${text(v)}`).join(", ");

  function drawCurve(run) {
    section("curve", [run.curve, run.reference], (width) => {
      const every = Math.ceil(run.curve.length / 12), last = run.curve.length - 1;
      const rows = run.curve.filter((_, i) => i % every === 0 || i === last), volumes = aligned(rows.map((r) => r[1]));
      return [
        make("h2", {}, "Hypervolume over time"),
        small(`Volume of the objective space that the front dominates, from the reference ${cornerOf(run.reference)}.`),
        curves(width, [run.curve], `Hypervolume over time, ${text(run.hypervolume)} at the end`, run.virtual),
        more("curve-table", "As a table",
          table("Hypervolume over time", ["time", "hypervolume"], rows.map((r, i) => [clock(r[0]), volumes[i]]), { plain: true })),
      ];
    });
  }

  // ---- learning curves ----

  // A path over steps that is interrupted where a value is missing, out of view, or was reached with other weights.
  function curvePath(at, points, [lo, hi]) {
    let open = false;
    return points.map(({ step, value, taken }) => {
      const visible = value !== null && value >= lo && value <= hi, place = `${round(at.X(step))} ${round(at.Y(value ?? lo))}`;
      const part = !visible ? "" : open && !taken ? `L${place}` : `M${place}h0`;
      open = visible;
      return part;
    }).join("");
  }

  const pointsOf = (curve, m) =>
    curve.steps.map((step, i) => ({ job: curve.jobs[i], step, value: curve.scores[m][i], taken: curve.taken[i] }));

  // What was measured along the lineage of a model.
  function lineagePoints(run, way, m) {
    const byTrial = new Map(run.learning.curves.map((curve) => [curve.trial, curve]));
    return way.flatMap(({ job, start, trial, begin, end }) => {
      const curve = byTrial.get(trial), after = start ?? -1;
      const own = curve ? pointsOf(curve, m) : [];
      return own.filter((p) => p.job > after && p.job <= job && p.step > begin && p.step <= end).map((p) => ({ ...p, taken: 0 }));
    });
  }

  function rangeOf(run, m) {
    const k = run.objectives.findIndex((o) => o.name === run.learning.metrics[m]);
    if (k >= 0) return run.views[k];
    const values = run.learning.curves.flatMap((curve) => curve.scores[m]).filter((v) => v !== null);
    const lo = Math.min(...values), hi = Math.max(...values), margin = 0.04 * (hi - lo) || 0.04 * Math.abs(hi) || 1;
    return values.length ? [lo - margin, hi + margin] : [0, 1];
  }

  function learningPanel(side, run, way, m) {
    const name = run.learning.metrics[m], objective = run.objectives.find((o) => o.name === name), view = rangeOf(run, m);
    const y = objective ? upwards(objective, view) : { lo: view[0], hi: view[1], label: short(name) };
    const at = frame(side, 230, { lo: 0, hi: run.steps, label: "step" }, y, `Learning curves: ${name}`);
    const members = run.learning.curves.map((curve) => curvePath(at, pointsOf(curve, m), view)).join("");
    at.root.append(
      shape("path", { class: "member", d: members }),
      shape("path", { class: "ancestry thin", d: curvePath(at, lineagePoints(run, way, m), view) }));
    return at.root;
  }

  function drawLearning(run) {
    const { learning, views, stretches, trials } = run;
    section("learning", [learning, views, stretches, chosen], (width) => {
      const way = chosen.job === null ? [] : wayOf(run, chosen.job), count = learning.metrics.length;
      const columns = clamp(Math.floor((width + 22) / 300), 1, Math.max(1, Math.min(count, 3)));
      const side = Math.floor((width - 23 * (columns - 1)) / columns);
      return [
        make("h2", {}, "Learning curves"),
        small(`Metrics of ${plural(trials.length, "trial")} over training steps. A line is interrupted where a trial copied the weights of another. ` +
          "The highlighted line is the lineage of the selected model."),
        make("div", { class: columns > 1 ? "panels" : null },
          [...learning.metrics.keys()].map((m) => learningPanel(side, run, way, m))),
      ];
    });
  }

  // ---- importance ----

  function importanceBars(side, run, { objective, explained, shares, shifts }) {
    const names = run.space.map((s) => s.name), { direction } = run.objectives.find((o) => o.name === objective);
    const row = 36, top = 44, height = top + row * names.length, room = 132, wide = Math.max(40, side - room);
    const label = (name) => {
      const share = `${Math.round(100 * shares[name])} %`, shift = shifts[name];
      return shift === null || shares[name] < 0.01 ? share : `${share}, ${shift > 0 ? "+" : "−"}${text(Math.abs(shift), 2)}`;
    };
    const root = shape("svg", {
      width: side, height, viewBox: `0 0 ${side} ${height}`, role: "img",
      "aria-label": `Importance for ${objective}: ${names.map((name) => `${name} ${label(name)}`).join("; ")}`,
    },
    shape("text", { class: "name", x: 0, y: 12 }, `${short(objective)} ${ARROWS[direction]}`),
    shape("text", { x: 0, y: 29 }, `${Math.round(100 * explained)} % of the changes explained`));
    names.forEach((name, i) => {
      const y = top + row * i, length = Math.max(1, round(wide * shares[name]));
      root.append(
        shape("text", { x: 0, y: y + 11 }, short(name, Math.max(12, Math.floor(side / 7)))),
        shape("path", { class: "bar", d: `M0 ${y + 16}h${length}v9h${-length}z` }),
        shape("text", { x: length + 6, y: y + 25 }, label(name)));
    });
    return root;
  }

  const hasImportance = ({ importance }) => importance.objectives.length > 0 || importance.missing !== "";

  function drawImportance(run) {
    if (!hasImportance(run)) return drop("importance");
    const { objectives: found, missing } = run.importance;
    section("importance", [run.importance], (width) => {
      const columns = clamp(Math.floor((width + 22) / 300), 1, Math.max(1, Math.min(found.length, 3)));
      const side = Math.floor((width - 23 * (columns - 1)) / columns), unclear = found.filter((i) => i.explained < 0.1);
      return [
        make("h2", {}, "Importance of hyperparameters"),
        missing ? small(`${missing[0].toUpperCase()}${missing.slice(1)}.`) : small(
          "Which hyperparameter moved which objective: how much worse a random forest predicts the change of an objective in an " +
          `interval if the values of the hyperparameter are shuffled (${plural(found[0].intervals, "interval")}). The signed number is ` +
          "the change in an interval with large values, less that with small ones."),
        unclear.length ? small(`Hardly any change of ${unclear.map((i) => i.objective).join(", ")} can be explained, so its bars mean little.`) : null,
        make("div", { class: columns > 1 ? "panels" : null }, found.map((importance) => importanceBars(side, run, importance))),
      ];
    });
  }

  // ---- lineage ----

  function drawLineage(run, index) {
    const { trials, exploits, exploited, stretches, front } = run;
    section("lineage", [trials, exploits, stretches, front.map((p) => p.job), chosen], (width) => {
      const way = chosen.job === null ? [] : wayOf(run, chosen.job);
      const thin = exploits.length < exploited ? ` ${whole(exploits.length)} of ${whole(exploited)} exploits are drawn.` : "";
      return [
        make("h2", {}, "Lineage"),
        small("Each row is a trial. A bend is an exploit, where a trial copies the weights of another. The highlighted line " +
          `is the lineage of the selected model.${thin}`),
        lineagePicture(width, run, index, way),
        way.length ? more("lineage-table", `Lineage of model ${chosen.job} as a table`, wayTable(run, way)) : null,
      ];
    });
  }

  function lineagePicture(width, run, index, way) {
    const row = new Map(run.trials.map(([trial], i) => [trial, i])), n = Math.max(run.trials.length, 1);
    const tall = clamp(n * 12, 120, 480), every = Math.ceil(n / Math.max(2, Math.floor(tall / 26)));
    const rows = run.trials.filter((_, i) => i % every === 0).map(([trial]) => ({ at: -row.get(trial), text: String(trial) }));
    const x = { lo: 0, hi: run.steps, label: "step" }, y = { lo: 0.4 - n, hi: 0.6, label: "trial", ticks: rows };
    const label = `Lineage: ${plural(run.exploited, "exploit")} among ${plural(run.trials.length, "trial")}`;
    const at = frame(width, tall + 64, x, y, label, { grid: false, role: "group" });
    const X = (step) => round(at.X(step)), Y = (trial) => round(at.Y(-row.get(trial))), bend = Math.min(10, at.w / run.steps / 2);
    const join = (step, from, to) =>
      `M${round(X(step) - bend)} ${Y(from)}C${X(step)} ${Y(from)} ${X(step)} ${Y(to)} ${round(X(step) + bend)} ${Y(to)}`;
    at.root.append(
      shape("path", { class: "life", d: run.trials.map(([trial, a, b]) => `M${X(a)} ${Y(trial)}H${X(b)}`).join("") }),
      shape("path", {
        class: "taken", "stroke-opacity": clamp(600 / run.exploits.length, 0.25, 1), // many exploits would hide everything else
        d: run.exploits.map(([from, , to, step]) => join(step, from, to)).join(""),
      }));
    if (way.length) at.root.append(
      shape("path", { class: "ancestry", d: ancestry(way, X, Y, join, bend) }),
      shape("circle", { class: "ancestry-dot", cx: X(way[0].begin), cy: Y(way[0].trial), r: 5 }));
    const items = run.front.map((p) => {
      const place = { x: X(p.step), y: Y(p.trial) }, label = describe(run, p);
      const attributes = { class: "point", d: mark(0, place.x, place.y, 3.6), "data-key": `l-${p.job}`, "aria-label": label };
      return { ...place, run: index, job: p.job, node: shape("path", attributes, shape("title", {}, label)) };
    }).sort((a, b) => a.x - b.x || a.y - b.y);
    selectable(at.root, items);
    clickable(at.root, items);
    ringed(at.root, items, 8);
    return at.root;
  }

  function ancestry(way, X, Y, join, bend) {
    return way.map(({ trial, begin, end, before }, i) => {
      const leaves = i + 1 < way.length && way[i + 1].before !== null;
      const from = X(begin) + (before === null ? 0 : bend), to = X(end) - (leaves ? bend : 0);
      return `${before === null ? "" : join(begin, before, trial)}M${round(from)} ${Y(trial)}H${round(to)}`;
    }).join("");
  }

  function wayTable(run, way) {
    const rows = way.map(({ job, trial, begin, end, config, before }) => {
      const who = before === null ? String(trial) : `${trial}, copied from ${before}`;
      return [`${begin}–${end}`, who, String(job), ...valuesAt(run, config)];
    });
    const heads = ["steps", "trial", "model id", ...run.space.map((s) => s.name)];
    return table(`Lineage of model ${chosen.job}`, heads, rows, { left: [1] });
  }

  // ---- hyperparameters ----

  function shareOf({ values, lo, hi, log }, position) {
    if (values) return (position + 0.5) / values.length;
    return log ? Math.log(position / lo) / Math.log(hi / lo) : (position - lo) / (hi - lo);
  }

  const valueOfShare = ({ values, lo, hi, log }, share) => (values
    ? values[Math.min(Math.floor(share * values.length), values.length - 1)]
    : log ? lo * (hi / lo) ** share : lo + (hi - lo) * share);

  function valueTicks(dimension) {
    const { values } = dimension, last = (values?.length ?? 0) - 1;
    const listed = last < 5 ? [...(values ?? []).keys()] : [0, Math.floor(last / 2), last];
    const places = values ? listed.map((i) => shareOf(dimension, i)) : [0, 0.5, 1];
    return places.map((at) => ({ at, text: short(text(valueOfShare(dimension, at), 3), 12) }));
  }

  function smalls(width, run, draw, label) {
    const columns = clamp(Math.floor((width + 22) / 300), 1, run.space.length);
    const side = Math.floor((width - 23 * (columns - 1)) / columns), x = { lo: 0, hi: run.steps, label: "step" };
    return make("div", { class: columns > 1 ? "panels" : null }, run.space.map((dimension, k) => {
      const y = { lo: 0, hi: 1, label: short(dimension.name), ticks: valueTicks(dimension) };
      const at = frame(side, 190, x, y, `${label}: ${dimension.name}`, { grid: false });
      at.root.append(...draw(at, dimension, k));
      return at.root;
    }));
  }

  const scaleOf = (kind, from, to) => make("ul", { class: "legend" }, make("li", {}, from, make("span", { class: kind }), to));

  // The color of a position on the front, from its first model (0) to its last (1).
  const mixed = (at) => (at < 0.5
    ? `color-mix(in oklab, var(--c2) ${round(200 * at)}%, var(--c1))`
    : `color-mix(in oklab, var(--c3) ${round(200 * at - 100)}%, var(--c2))`);

  function scheduleLine({ job, at: place, schedule }, at, dimension, k) {
    const height = (s) => round(at.Y(shareOf(dimension, s.config[k])));
    const d = schedule.map((s, i) => `${i ? "V" : `M${round(at.X(s.begin))} `}${height(s)}H${round(at.X(s.end))}`).join("");
    const line = shape("path", { class: `schedule${job === chosen.job ? " chosen" : ""}`, d });
    if (job !== chosen.job) line.style.stroke = mixed(place);
    return line;
  }

  function drawSchedules(run) {
    section("schedules", [run.front.map((p) => p.job), run.stretches, chosen], (width) => {
      const count = run.front.length, every = Math.ceil(count / SCHEDULES), first = run.objectives[0].name;
      const placed = run.front.map(({ job }, i) => ({ job, at: count > 1 ? i / (count - 1) : 0 }));
      const shown = placed.filter((p, i) => i % every === 0 || p.job === chosen.job);
      shown.sort((a, b) => (a.job === chosen.job) - (b.job === chosen.job)); // the selected one on top
      const lines = shown.map((p) => ({ ...p, schedule: scheduleOf(run, p.job) }));
      const thin = every > 1 ? ` ${whole(shown.length)} of ${whole(count)} are drawn.` : "";
      return [
        make("h2", {}, "Hyperparameter schedules"),
        small(`Hyperparameters of the models on the front at each training step. The thick line is the selected model.${thin}`),
        scaleOf("ramp", `best ${first}`, `worst ${first} of the front`),
        smalls(width, run, (at, dimension, k) => lines.map((line) => scheduleLine(line, at, dimension, k)), "Schedules"),
      ];
    });
  }

  // ---- searched regions ----

  // A heat map of cells {i, j, count}, as one path for each of five shades from few to many.
  function heat(at, columns, rows, cells, scale) {
    const w = at.w / columns, h = at.h / rows, most = scale(Math.max(1, ...cells.map((cell) => cell.count)));
    const parts = [[], [], [], [], []];
    for (const { i, j, count } of cells) {
      const shade = clamp(Math.ceil((5 * scale(count)) / most) - 1, 0, 4), wide = round(w + 0.3), tall = round(h + 0.3);
      parts[shade].push(`M${round(at.left + i * w)} ${round(at.top + at.h - (j + 1) * h)}h${wide}v${tall}h${-wide}z`);
    }
    return parts.map((d, i) => shape("path", { class: `s${i + 1}`, d: d.join("") }));
  }

  function histogram(width, run, { x, y, bins, cells }) {
    const [wide, high] = [run.objectives[x], run.objectives[y]];
    const label = `Number of evaluations by ${wide.name} and ${high.name}`;
    const height = Math.round(clamp(width * 0.66, 230, 420));
    const at = frame(width, height, across(wide, run.views[x]), upwards(high, run.views[y]), label, { grid: false });
    at.root.append(...heat(at, bins, bins, cells.map(([i, j, count]) => ({ i, j, count })), Math.log1p));
    return at.root;
  }

  function visitsPicture(run) {
    return (at, dimension, k) => {
      const visits = run.visits[k], cells = visits.flatMap((levels, i) => levels.map((count, j) => ({ i, j, count })));
      return heat(at, visits.length, dimension.levels, cells.filter((cell) => cell.count), (count) => count);
    };
  }

  function favorite(dimension, visits) {
    const total = visits.reduce((a, b) => a + b, 0), j = visits.indexOf(Math.max(...visits)), { values, levels } = dimension;
    if (!total) return "–";
    const value = text(valueOfShare(dimension, (j + 0.5) / levels), 3), exact = values && values.length <= levels;
    return `${exact ? "" : "≈ "}${value} (${Math.round((100 * visits[j]) / total)} %)`;
  }

  function visitsTable(run) {
    const last = (visits) => [...visits].reverse().find((levels) => levels.some(Boolean)) || visits[0];
    const rows = run.space.map((s, k) => [s.name, favorite(s, run.visits[k][0]), favorite(s, last(run.visits[k]))]);
    const heads = ["hyperparameter", "most frequent at the start", "most frequent at the end"];
    return table("Most frequent values", heads, rows, { left: [0] });
  }

  function drawSearch(run) {
    section("search", [run.histograms, run.visits, run.views], (width) => {
      const halves = run.histograms.length === 1 && width > 800, thirds = run.histograms.length > 1 && width > 600;
      const side = halves ? Math.floor((width - 26) * 0.55) : thirds ? Math.floor((width - 46) / 3) : width;
      return [
        make("h2", {}, "Searched regions"),
        small("Number of evaluations by objectives, and by the values of each hyperparameter over training steps."),
        scaleOf("shades", "few", "many"),
        make("div", { class: halves ? "halves" : null },
          make("div", { class: thirds ? "panels" : null }, run.histograms.map((h) => histogram(side, run, h))),
          smalls(halves ? width - 26 - side : width, run, visitsPicture(run), "Values tried")),
        more("visits-table", "As a table", visitsTable(run)),
      ];
    });
  }

  // ---- failures, settings, head ----

  function drawFailures(run) {
    if (!run.failed && !run.diverged) return drop("failures");
    const entry = ({ count, message, jobs, text: error }, i) => more(
      `failure-${i}`, `${whole(count)} × ${message || "no message"}`,
      small(`Jobs ${jobs.join(", ")}${count > jobs.length ? ", …" : ""}`), make("pre", { tabindex: "0" }, error));
    section("failures", [run.failures, run.failed, run.diverged], () => [
      make("h2", {}, "Failures"),
      small(`${plural(run.failed, "interval")} failed, ${whole(run.diverged)} measured NaN or infinity. Such a member ranks last ` +
        "and is replaced at the next exploit."),
      ...run.failures.map(entry),
    ]);
  }

  function drawSettings(run) {
    section("settings", run.settings, () => [
      make("h2", {}, "Settings"), more("settings-table", "Settings of the run", pairs(run.settings)),
    ]);
  }

  function tile(name, value, beside, extra) {
    const number = make("dd", {}, value, beside ? make("span", { class: "soft" }, ` ${beside}`) : null, extra);
    return make("div", { class: "tile" }, make("dt", {}, name), number);
  }

  const badge = (run) => make("span", { class: `badge ${run.state}`, title: run.driver }, run.state);
  const objectivesText = (run) => run.objectives.map((o) => `${o.name} ${ARROWS[o.direction]}`).join(", ");

  function progressOf(run) {
    return run.total ? make("progress", { max: run.total, value: run.intervals, "aria-label": "intervals done" }) : null;
  }

  function bestTile(run, { name, direction }, k) {
    const worth = (p) => (direction === "max" ? 1 : -1) * p.objectives[k];
    const best = run.front.reduce((most, p) => (!most || worth(p) > worth(most) ? p : most), null);
    const [value, error] = best ? scoreOf(run, best, k).split(" ± ") : ["–"];
    return tile(`best ${name} ${ARROWS[direction]}`, value, error ? `± ${error}` : "");
  }

  function tiles(run) {
    const wrong = run.failed + run.diverged;
    return make("dl", { class: "tiles" },
      tile("models on the front", whole(run.front.length)),
      tile("hypervolume", text(run.hypervolume)),
      run.objectives.slice(0, 4).map((objective, k) => bestTile(run, objective, k)),
      tile("intervals", whole(run.intervals), run.total ? `of ${whole(run.total)}` : "", progressOf(run)),
      tile(run.virtual ? "virtual time" : "time", clock(run.seconds)),
      wrong ? tile("failed or diverged", whole(wrong)) : null);
  }

  function titleLine(title, ...beside) {
    return make("div", { class: "line" }, make("h1", {}, title), ...beside,
      data.live ? make("span", { class: "badge", id: "link" }) : null);
  }

  function about(run) {
    const limits = run.constraints.length ? `, where ${run.constraints.join(" and ")}` : "";
    return make("p", { class: "soft" }, `${run.algorithm}, seed ${run.seed}, ${objectivesText(run)}${limits}`, make("br"),
      make("span", { class: "small" }, run.path));
  }

  function drawHead() {
    const { runs, live } = data, alone = runs.length === 1, run = runs[0];
    const from = runs.map((r) => [
      r.task, r.path, r.state, r.driver, r.trouble, r.intervals, r.seconds, r.hypervolume, r.failed, r.diverged, r.front.length,
    ]);
    section("head", from, () => [
      live ? make("a", { class: "small", href: "/", "data-key": "home" }, "← all runs") : null,
      alone ? titleLine(run.task, badge(run)) : titleLine(`${run.task}: ${runs.length} runs`),
      alone ? about(run) : make("p", { class: "soft" }, objectivesText(run)),
      ...runs.filter((r) => r.trouble).map((r) => trouble(`${r.name}: ${r.trouble}`)),
      alone ? tiles(run) : null,
    ]);
    showLink();
  }

  // ---- several runs ----

  const runSign = (i) => sign(`point ${color(i)}`, mark(i, 8, 6, 4.5));

  function comparisonTable({ comparison, runs }) {
    const { rows } = comparison, covered = rows[0].coverage !== null;
    const volumes = aligned(rows.map((row) => row.hypervolume)), most = Math.max(...rows.map((row) => row.hypervolume));
    const cells = runs.map((run, i) => [
      make("span", {}, runSign(i), " ", run.name),
      run.algorithm, String(run.seed), run.state,
      rows[i].hypervolume === most ? make("strong", {}, volumes[i]) : volumes[i],
      ...(covered ? [`${(100 * rows[i].coverage).toFixed(1)} %`] : []),
      whole(rows[i].of), whole(rows[i].kept), clock(run.seconds),
    ]);
    const measures = ["hypervolume", ...(covered ? ["coverage"] : []), "front", "undominated"];
    const heads = ["run", "algorithm", "seed", "state", ...measures, "time"], corner = cornerOf(comparison.reference);
    return [
      table("Comparison of the runs", heads, cells, { left: [0, 1, 3], key: "compared" }),
      small(`Hypervolume${covered ? " and coverage are" : " is"} measured from one common reference, ${corner}. ` +
        "Undominated: models of a front that no model of another run dominates." +
        (runs.some(hasErrors) ? " The numbers refer to the observed fronts, the points to the pessimistic ones." : "") +
        (covered ? " Coverage: the share of directions from the reference that hold a model." : "")),
    ];
  }

  function drawComparison() {
    const { comparison, runs } = data;
    section("comparison", [comparison, runs.map((r) => [r.name, r.front, r.state, r.seconds]), chosen], (width) => [
      make("h2", {}, "Comparison"),
      ...comparisonTable(data),
      make("h3", {}, "Fronts"),
      pictures(width, runs, [...runs.keys()], comparison.views),
      make("ul", { class: "legend" }, runs.map((run, i) => make("li", {}, runSign(i), run.name))),
      make("h3", {}, "Hypervolume over time"),
      curves(width, comparison.curves, "Hypervolume of the runs over time", runs.some((r) => r.virtual)),
    ]);
  }

  function drawChooser() {
    const { runs } = data, run = runs[chosen.run];
    const turnTo = (i) => () => { Object.assign(chosen, { run: i, job: null, byHand: false }); render(); };
    const button = ({ name }, i) => make("button",
      { "aria-pressed": i === chosen.run ? "true" : "false", "data-key": `run-${i}`, click: turnTo(i) }, name);
    section("which", [runs.map((r) => r.name), chosen.run, run.intervals, run.hypervolume, run.front.length], () => [
      make("h2", {}, "Details of one run"),
      make("div", { class: "chooser", role: "group", "aria-label": "runs" }, runs.map(button)),
      tiles(run),
    ]);
  }

  // ---- the list of runs ----

  function spark(curve) {
    const [far, high] = (curve.at(-1) || [1, 1]).map((end) => end || 1);
    const d = curve.map(([t, v], i) => `${i ? "L" : "M"}${round((100 * t) / far)} ${round(22 - (20 * v) / high)}`).join("");
    return shape("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" },
      shape("path", { class: "curve", d, "vector-effect": "non-scaling-stroke" }));
  }

  function markBox({ name }) {
    const change = (event) => marked[event.target.checked ? "add" : "delete"](name);
    const named = { name: "run", value: name, "aria-label": `mark ${name}`, "data-key": `mark-${name}` };
    const box = make("input", { type: "checkbox", ...named, change });
    box.checked = marked.has(name);
    return box;
  }

  function indexRow(run) {
    const link = make("a", { href: `/?${new URLSearchParams({ run: run.name })}`, "data-key": `run-${run.name}` }, run.name);
    if (run.state === undefined) return [markBox(run), run.name, run.trouble];
    const state = make("span", {}, badge(run), progressOf(run), run.trouble ? make("div", { class: "small" }, run.trouble) : null);
    const intervals = `${whole(run.intervals)}${run.total ? ` / ${whole(run.total)}` : ""}`;
    const numbers = [whole(run.models), run.hypervolume === null ? "–" : text(run.hypervolume), spark(run.curve), intervals, clock(run.seconds)];
    return [markBox(run), link, state, ...numbers, run.task, run.algorithm, String(run.seed)];
  }

  function drawIndex() {
    const { index } = data, none = "There are no runs below this directory yet. New runs appear here.";
    section("head", index.length, () => [
      titleLine(plural(index.length, "run")),
      make("p", { class: "soft" }, index.length ? "Select a run, or mark several runs of the same task to compare them." : none),
    ]);
    showLink();
    const heads = ["", "run", "state", "front", "hypervolume", "over time", "intervals", "time", "task", "algorithm", "seed"];
    section("runs", index, () => [
      index.length ? make("form", { action: "/", method: "get" },
        table("The runs", heads, index.map(indexRow), { left: [0, 1, 2, 8, 9], key: "runs" }),
        make("button", { type: "submit", "data-key": "compare" }, "Compare the marked runs")) : null,
    ]);
  }

  // ---- rendering and live updates ----

  function showLink() {
    const node = document.getElementById("link");
    if (!node) return;
    node.className = `badge ${connection}`;
    node.textContent = { live: "live", lost: "connection lost, reconnecting", connecting: "connecting" }[connection];
  }

  function render() {
    if (data.index) return drawIndex();
    settle();
    drawHead();
    if (data.runs.length > 1) {
      drawComparison();
      drawChooser();
    }
    const run = data.runs[chosen.run];
    drawFront(run, chosen.run);
    drawCurve(run);
    drawLearning(run);
    drawLineage(run, chosen.run);
    drawSchedules(run);
    if (hasImportance(run) && !document.getElementById("importance")) ["search", "failures", "settings"].forEach(drop); // to append them after it
    drawImportance(run);
    drawSearch(run);
    if ((run.failed || run.diverged) && !document.getElementById("failures")) drop("settings"); // to append it again after the failures
    drawFailures(run);
    drawSettings(run);
  }

  function follow() {
    const source = new EventSource(`/events${location.search}`);
    const turn = (state) => { connection = state; showLink(); };
    source.onopen = () => turn("live");
    source.onerror = () => turn("lost");
    source.onmessage = (event) => {
      data = JSON.parse(event.data);
      turn("live");
      render();
    };
    addEventListener("pagehide", () => source.close());
  }

  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // the bars of a phone's browser change only the height
    width = innerWidth;
    requestAnimationFrame(render);
  });
  document.querySelector("noscript")?.remove();
  render();
  if (data.live) follow();
})();
