"use strict";
// Draws figures with uPlot: values under the pointer or the arrow keys, zoom by dragging. Without this script a page shows its static figures.
//
// oppa/report/interactive.py describes a chart. The live page also sets `height` in pixels, `legend: false`, `resting` (the text while no
// point is near), and `solid` of a line without dashes.
// Text from outside enters a page through textContent and attributes only.
const charts = (() => {
  const COLOURS = ["blue", "vermillion", "green", "orange", "purple", "olive", "grey"];
  const DASHES = [[], [8, 3], [2, 3], [10, 3, 2, 3]];
  const CIRCLE = "M1 0A1 1 0 1 1-1 0A1 1 0 1 1 1 0Z";
  const CROSS = "M-1-.5-.5-1 0-.5 .5-1 1-.5 .5 0 1 .5 .5 1 0 .5-.5 1-1 .5-.5 0Z";
  const STAR = "M0-1.9 .45-.6 1.8-.6 .7 .2 1.1 1.5 0 .7-1.1 1.5-.7 .2-1.8-.6-.45-.6Z";
  const MARKS = [CIRCLE, CROSS, "M-.9-.9H.9V.9H-.9Z", "M0-1.2 1 0 0 1.2-1 0Z", "M0-1 1.1 .9-1.1 .9Z", "M-.4-1H.4V-.4H1V.4H.4V1H-.4V.4H-1V-.4H-.4Z", "M0 1 1.1-.9-1.1-.9Z"];
  const SVG = "http://www.w3.org/2000/svg";
  const HINT = "Drag to zoom. Keys: ← and → move between the points, + and − zoom, 0 shows everything.";
  const REACH = 40;  // largest distance in pixels at which the pointer reaches a mark
  const ROW = 14;  // height of a row of marks without a value, in pixels
  const drawn = new Set();

  const at = (list, index) => list[index % list.length];
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const hue = series => series.colour ?? at(COLOURS, series.look);
  const shape = series => series.star ? STAR : at(MARKS, series.look);
  const isNumber = value => typeof value === "number" && Number.isFinite(value);

  function number(value) {
    if (!isNumber(value)) return "–";
    return Math.abs(value) >= 1e6 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(+value.toPrecision(4));
  }

  function element(name, className, text) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function swatch(series) {  // what the series looks like, for the legend
    const svg = document.createElementNS(SVG, "svg"), path = document.createElementNS(SVG, "path");
    svg.setAttribute("aria-hidden", "true");
    svg.setAttribute("viewBox", series.kind === "marks" ? "-2.2 -2.2 4.4 4.4" : "0 -7 26 14");
    const facts = series.kind === "marks" ? { d: shape(series), fill: series.hollow ? "none" : `var(--${hue(series)})`, stroke: `var(--${hue(series)})`, "stroke-width": series.hollow ? .35 : 0 }
      : { d: "M0 0H26", fill: "none", stroke: `var(--${hue(series)})`, "stroke-width": 2, "stroke-dasharray": at(DASHES, series.look).join(" "), opacity: series.pale ? .4 : 1 };
    for (const [key, value] of Object.entries(facts)) path.setAttribute(key, value);
    svg.append(path);
    return svg;
  }

  // uPlot takes one column of x for all series. `undefined` is no point of the series, and `null` is a gap in its line.
  function aligned(series) {
    const points = series.flatMap((each, s) => each.x.map((x, i) => [x, s, i])).sort((a, b) => a[0] - b[0]);
    const x = [], columns = series.map(() => []), low = series.map(() => []), high = series.map(() => []);
    let start = 0;
    for (const [value, s, i] of points) {
      if (x.length && x[x.length - 1] !== value) start = x.length;
      let row = start;
      while (row < x.length && columns[s][row] !== undefined) row++;
      if (row === x.length) { x.push(value); for (const column of [...columns, ...low, ...high]) column.push(undefined); }
      columns[s][row] = series[s].y[i] ?? null;
      if (series[s].low) { low[s][row] = series[s].low[i] ?? null; high[s][row] = series[s].high[i] ?? null; }
    }
    return { x, columns, low, high };
  }

  const padded = (low, high, log, share) => {
    if (log) { const factor = low === high ? 2 : (high / low) ** share; return [low / factor, high * factor]; }
    const pad = (high - low || Math.abs(high) || 1) * share;
    return [low - pad, high + pad];
  };

  function ticks(low, high, log) {  // of a logarithmic axis
    const found = [];
    for (let e = Math.floor(Math.log10(low)) - 1; e <= Math.log10(high) + 1; e++) for (const k of [1, 2, 5]) found.push(k * 10 ** e);
    const powers = [];
    for (let e = Math.floor(Math.log2(low)); e <= Math.log2(high) + 1; e++) powers.push(2 ** e);
    const inside = (log === 2 ? powers : found).filter(tick => tick >= low && tick <= high).map(tick => +tick.toPrecision(12));
    if (inside.length > 1) return inside.filter((_, i) => i % Math.ceil(inside.length / 6) === 0);
    const step = 10 ** Math.floor(Math.log10((high - low) / 2)), between = [];
    for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) between.push(+tick.toPrecision(12));
    return between.filter((_, i) => i % Math.ceil(between.length / 6) === 0);
  }

  class Chart {
    constructor(frame, chart) {
      this.hidden = new Set();
      this.view = {};  // the zoomed limits of x and y
      this.root = element("div", "chart");
      this.legend = element("div", "chart-legend");
      this.plot = element("div", "chart-plot");
      this.foot = element("div", "chart-foot");
      this.readout = element("output", "chart-readout");
      this.back = element("button", "chart-reset", "show everything");
      this.back.type = "button";
      this.back.onclick = () => this.zoom({});
      this.foot.append(this.readout, this.back);
      this.plot.tabIndex = 0;
      this.plot.setAttribute("role", "group");
      this.root.append(this.legend, this.plot, this.foot);
      frame.append(this.root);
      this.plot.addEventListener("keydown", event => this.key(event));
      this.readout.setAttribute("aria-live", "off");  // only keys speak: the pointer and the live page would interrupt a reader all the time
      this.plot.addEventListener("focus", () => { this.readout.setAttribute("aria-live", "polite"); if (!this.near) this.say(); });
      this.plot.addEventListener("blur", () => { this.readout.setAttribute("aria-live", "off"); this.point(null); });
      this.update(chart);
      new ResizeObserver(() => { this.u.setSize(this.size()); this.point(this.near); }).observe(this.plot);
      drawn.add(this);
    }

    update(chart) {
      const before = this.chart && JSON.stringify(this.shape()), kept = this.near?.map(({ series, i }) => [this.chart.series.indexOf(series), i]);
      this.chart = chart;
      this.data = aligned(chart.series);
      this.plot.setAttribute("aria-label", `${chart.label}. ${HINT}`);
      if (before === JSON.stringify(this.shape())) this.u.setData(this.columns());
      else { this.keys(); this.build(); }
      this.zoom(this.view);
      const near = kept?.filter(([s, i]) => i < chart.series[s]?.x.length).map(([s, i]) => ({ series: chart.series[s], i, x: chart.series[s].x[i] }));
      this.point(near?.length ? near : null);
    }

    shape() { return this.chart.series.map(({ name, kind, look, low }) => [name, kind, look, Boolean(low)]); }
    size() { const width = Math.max(this.plot.clientWidth, 160); return { width, height: Math.round(Math.min(Math.max(width * .6, 180), this.chart.height ?? 320)) }; }
    shown() { return this.chart.series.filter(series => !this.hidden.has(series.name)); }

    rows() { return Math.max(0, ...this.shown().map(series => (series.row ?? -1) + 1)); }  // of marks without a value

    columns() {
      const bands = this.chart.series.flatMap((series, s) => series.low && series.kind !== "marks" ? [this.data.low[s], this.data.high[s]] : []);
      return [this.data.x, ...bands, ...this.data.columns];  // bands are below all lines and marks
    }

    options() {
      const { chart } = this, series = [], bands = [], edges = [];
      chart.series.forEach((each, s) => {
        const path = each.kind === "marks" ? u => this.marks(u, s) : each.kind === "steps" ? uPlot.paths.stepped({ align: 1 }) : undefined;
        series.push({
          show: !this.hidden.has(each.name), scale: each.row === undefined ? "y" : "rows", width: each.pale ? 1 : 1.6, alpha: each.pale ? .4 : 1, paths: path, points: { show: false },
          dash: each.kind === "marks" || each.solid ? [] : at(DASHES, each.look), stroke: () => colour(hue(each)),
          fill: each.kind === "marks" ? () => colour(each.hollow ? "paper" : hue(each)) : undefined,
        });
        if (!each.low || each.kind === "marks") return;
        const first = 1 + edges.length, edge = { show: !this.hidden.has(each.name), width: 0, points: { show: false }, paths: path };
        edges.push(edge, edge);
        bands.push({ series: [first + 1, first], fill: () => colour(hue(each)) + "29" });
      });
      const axis = { stroke: () => colour("soft"), font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 20,
        grid: { stroke: () => colour("rule"), width: 1 }, ticks: { show: false }, values: (_, splits) => splits.map(number) };
      const logs = log => log ? { splits: (_, __, low, high) => ticks(low, high, log), filter: (_, splits) => splits } : {};
      return {
        ...this.size(), series: [{}, ...edges.map(edge => ({ ...edge })), ...series], bands, legend: { show: false }, padding: [8, 14, 0, 0],
        scales: { x: { time: false, distr: chart.x.log ? 3 : 1, range: () => this.limits().x }, y: { distr: chart.y.log ? 3 : 1, range: () => this.limits().y },
          rows: { range: u => { const high = Math.max(u.over.clientHeight || 200, 60) / ROW; return [-.5, high - .5]; } } },
        axes: [{ ...axis, label: chart.x.label, size: 30, ...logs(chart.x.log) }, { ...axis, label: chart.y.label || undefined, size: 52, ...logs(chart.y.log) }],
        cursor: { x: false, y: false, points: { show: false }, drag: { x: true, y: true, uni: 24, setScale: false }, bind: { dblclick: () => () => { this.zoom({}); return null; } } },
        hooks: { setCursor: [u => this.hover(u)], setSelect: [u => this.selected(u)], drawAxes: [u => this.guides(u)] },
      };
    }

    limits() {  // of both axes: the zoomed ones, or those that show every point
      const { chart } = this, x = this.view.x ?? this.extent("x", () => true, .02);
      if (this.view.y) return { x, y: this.view.y };
      const y = this.extent("y", value => value >= x[0] && value <= x[1], .06), rows = this.rows();
      if (!rows) return { x, y };
      const share = Math.min(.5, (rows + .4) * ROW / Math.max(this.u?.over.clientHeight || 200, 60));  // space for the rows, below the values
      const f = chart.y.log ? Math.log : value => value, g = chart.y.log ? Math.exp : value => value;
      return { x, y: [g(f(y[0]) - (f(y[1]) - f(y[0])) * share / (1 - share)), y[1]] };
    }

    extent(axis, within, share) {
      const { log } = this.chart[axis], found = [];
      for (const series of this.shown()) series.x.forEach((x, i) => {
        const values = axis === "x" ? [x] : series.row !== undefined || !within(x) ? [] : [series.y[i], series.low?.[i], series.high?.[i]];
        for (const value of values) if (isNumber(value) && (!log || value > 0)) found.push(value);
      });
      if (this.chart.limit) found.push(this.chart.limit);
      if (!found.length) return log ? [.5, 2] : [0, 1];
      const low = found.reduce((a, b) => Math.min(a, b)), high = found.reduce((a, b) => Math.max(a, b));
      return padded(this.chart[axis].zero ? 0 : low, high, log, share).map((end, i) => this.chart[axis].zero && i === 0 ? 0 : end);
    }

    place(u, series, i, canvas) {  // of a point, in pixels
      return [u.valToPos(series.x[i], "x", canvas), u.valToPos(series.y[i], series.row === undefined ? "y" : "rows", canvas)];
    }

    marks(u, s) {
      const series = this.chart.series[s], size = (series.x.length > 300 ? 2.4 : 3.6) * uPlot.pxRatio, shaped = new Path2D(shape(series)), fill = new Path2D(), stroke = new Path2D();
      series.x.forEach((_, i) => {
        const [x, y] = this.place(u, series, i, true);
        if (!isNumber(x) || !isNumber(y)) return;
        fill.addPath(shaped, new DOMMatrix([size, 0, 0, size, x, y]));
        if (series.hollow) stroke.addPath(shaped, new DOMMatrix([size, 0, 0, size, x, y]));
        if (!series.low) return;
        stroke.moveTo(x, u.valToPos(series.low[i], "y", true));
        stroke.lineTo(x, u.valToPos(series.high[i], "y", true));
      });
      return { fill, stroke: series.low || series.hollow ? stroke : null, clip: null, band: null, gaps: null, flags: 0 };
    }

    guides(u) {
      const { ctx, bbox: { left, top, width, height } } = u, { diagonal, limit, verticals = [] } = this.chart;
      const pos = (value, axis) => u.valToPos(value, axis, true);
      const strokes = (dash, lines) => { ctx.setLineDash(dash); for (const [x, y, X, Y] of lines) { ctx.beginPath(); ctx.moveTo(x, y); ctx.lineTo(X, Y); ctx.stroke(); } };
      ctx.save();
      ctx.beginPath(); ctx.rect(left, top, width, height); ctx.clip();
      ctx.strokeStyle = colour("soft"); ctx.lineWidth = uPlot.pxRatio;
      if (diagonal) {
        const low = Math.min(u.scales.x.min, u.scales.y.min), high = Math.max(u.scales.x.max, u.scales.y.max);
        strokes([], [[pos(low, "x"), pos(low, "y"), pos(high, "x"), pos(high, "y")]]);
      }
      const dashed = verticals.map(value => [pos(value, "x"), top, pos(value, "x"), top + height]);
      if (limit) dashed.push([pos(limit, "x"), top, pos(limit, "x"), top + height], [left, pos(limit, "y"), left + width, pos(limit, "y")]);
      strokes([5 * uPlot.pxRatio, 3 * uPlot.pxRatio], dashed);
      if (this.rows()) strokes([], [[left, top + height - (this.rows() + .2) * ROW * uPlot.pxRatio, left + width, top + height - (this.rows() + .2) * ROW * uPlot.pxRatio]]);
      ctx.restore();
    }

    keys() {  // the legend; a click hides or shows a series
      const names = [...new Set(this.chart.series.map(series => series.name))];
      this.legend.replaceChildren(...names.map(name => {
        const button = element("button", "chart-key"), mine = this.chart.series.filter(series => series.name === name);
        button.type = "button";
        button.append(swatch(mine.find(series => series.kind === "marks" && mine.length === 1) ?? mine[0]), name);
        button.setAttribute("aria-pressed", String(!this.hidden.has(name)));
        button.onclick = () => {
          if (!this.hidden.delete(name)) this.hidden.add(name);
          button.setAttribute("aria-pressed", String(!this.hidden.has(name)));
          this.build();
          this.zoom(this.view);
          this.point(null);
        };
        return button;
      }));
      this.legend.hidden = names.length < 2 || this.chart.legend === false;
    }

    marked() { return this.shown().some(series => series.kind === "marks"); }

    // Values under the pointer: the nearest mark, or in a chart without marks the nearest point of every line.
    points() {
      const marked = this.marked();
      return this.shown().filter(series => !series.pale && (series.kind === "marks") === marked).flatMap(series => series.x.map((x, i) => ({ series, i, x }))).filter(({ series, i }) => isNumber(series.y[i]));
    }

    hover(u) {
      const { left, top } = u.cursor;
      if (left < 0) return this.point(null);
      const points = this.points();
      if (!this.marked()) return this.point(this.across(points, u.posToVal(left, "x")));
      let best = null, nearest = REACH;
      for (const point of points) {
        const [x, y] = this.place(u, point.series, point.i), distance = Math.hypot(x - left, y - top);
        if (distance <= nearest) { nearest = distance; best = [point]; }  // the last series is on top
      }
      this.point(best);
    }

    across(points, x) {  // the nearest point of each line, at the place of the nearest of all
      const closest = (among, x) => among.reduce((best, point) => !best || Math.abs(point.x - x) < Math.abs(best.x - x) ? point : best, null);
      const nearest = closest(points, x), span = (this.u.scales.x.max - this.u.scales.x.min) / 100;
      if (!nearest) return null;
      const others = [...new Set(points.map(point => point.series))].filter(series => series.name !== nearest.series.name);
      const beside = others.map(series => closest(points.filter(point => point.series === series), nearest.x));
      return [nearest, ...beside.filter(point => Math.abs(point.x - nearest.x) <= span)];
    }

    point(near) {
      this.near = near;
      this.rings.forEach(ring => { ring.hidden = true; });
      (near ?? []).slice(0, this.rings.length).forEach(({ series, i }, place) => {
        const [x, y] = this.place(this.u, series, i), ring = this.rings[place];
        ring.hidden = !isNumber(x) || !isNumber(y) || x < -1 || y < -1 || x > this.u.over.clientWidth + 1 || y > this.u.over.clientHeight + 1;
        ring.style.transform = `translate(${x}px, ${y}px)`;
      });
      this.say();
    }

    build() {
      this.u?.destroy();
      this.u = new uPlot(this.options(), this.columns(), this.plot);
      this.rings = this.chart.series.slice(0, 8).map(() => element("div", "chart-ring"));
      this.rings.forEach(ring => { ring.hidden = true; });
      this.u.over.append(...this.rings);
    }

    say() {
      const { x, y, resting } = this.chart, value = ({ series, i }) => number(series.y[i]) + (series.low ? ` [${number(series.low[i])} – ${number(series.high[i])}]` : "");
      if (!this.near) { this.readout.textContent = document.activeElement === this.plot ? HINT : resting ?? ""; return; }
      const [first] = this.near, note = first.series.notes?.[first.i];
      if (this.near.length === 1 && note) {
        const values = [`${x.label} ${number(first.x)}`, ...(first.series.row === undefined ? [`${y.label || this.chart.label.toLowerCase()} ${value(first)}`] : [])];
        this.readout.textContent = `${note}, ${first.series.name}: ${values.join("; ")}`;
      } else this.readout.textContent = `${x.label} ${number(first.x)}: ${this.near.map(point => `${point.series.name} ${value(point)}`).join("; ")}`;
    }

    selected(u) {
      const { left, top, width, height } = u.select, view = { ...this.view };
      if (width > 4) view.x = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
      if (height > 4 && height < u.over.clientHeight) view.y = [u.posToVal(top + height, "y"), u.posToVal(top, "y")];
      u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      this.zoom(view);
    }

    reset() { this.point(null); this.zoom({}); }

    zoom(view) {
      this.view = view;
      this.back.hidden = !view.x && !view.y;
      const { x, y } = this.limits();
      this.u.batch(() => { this.u.setScale("x", { min: x[0], max: x[1] }); this.u.setScale("y", { min: y[0], max: y[1] }); });
      this.u.redraw();
    }

    key(event) {
      const { key } = event, points = this.points().sort((a, b) => a.x - b.x), current = this.near?.[0];
      const place = current ? points.findIndex(point => point.series === current.series && point.i === current.i) : -1;
      const moves = { ArrowRight: place + 1, ArrowLeft: place < 0 ? points.length - 1 : place - 1, Home: 0, End: points.length - 1 };
      if (event.ctrlKey || event.metaKey || event.altKey || !points.length) return;
      if (key in moves) {
        const to = points[Math.min(Math.max(moves[key], 0), points.length - 1)], [low, high] = this.limits().x;
        if (to.x < low || to.x > high) this.zoom({ x: [to.x - (high - low) / 2, to.x + (high - low) / 2] });
        this.point(this.marked() ? [to] : [to, ...this.across(points, to.x).filter(point => point.series.name !== to.series.name)]);
      } else if (key === "+" || key === "=" || key === "-") this.magnify(key === "-" ? 2 : .5, current?.x);
      else if (key === "0" || key === "Escape") this.zoom({});
      else return;
      event.preventDefault();
    }

    magnify(factor, around) {  // of x alone; y follows what is visible
      const whole = this.extent("x", () => true, .02), f = this.chart.x.log ? Math.log : value => value, g = this.chart.x.log ? Math.exp : value => value;
      const [low, high] = this.limits().x.map(f), centre = around === undefined ? (low + high) / 2 : f(around);
      const view = [centre - (centre - low) * factor, centre + (high - centre) * factor].map(g);
      this.zoom(view[0] <= whole[0] && view[1] >= whole[1] ? {} : { x: [Math.max(view[0], whole[0]), Math.min(view[1], whole[1])] });
      if (this.near) this.point(this.near);
    }
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const each of drawn) each.u.redraw(); });
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    figure.classList.add("interactive");
    const frame = element("div");
    figure.prepend(frame);
    figure.append(new Chart(frame, JSON.parse(figure.dataset.chart)).foot);  // below the caption
  }
  return { Chart, hue, number };
})();
