// Shows the values under the pointer or at the position of the arrow keys. The page works without it.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const axis = () => document.querySelector("input[name=axis]:checked").value;

  const digits = (value) => {
    const size = Math.abs(value);
    if (size >= 1000 && size < 1e7) return String(Math.round(value));
    return String(Number(value.toPrecision(4)));
  };
  const duration = (s) =>
    s < 60 ? s.toFixed(s < 10 ? 1 : 0) + " s"
      : s < 3600 ? Math.floor(s / 60) + " min " + Math.floor(s % 60) + " s"
        : Math.floor(s / 3600) + " h " + Math.floor(s / 60 % 60) + " min";
  const place = (x, kind) =>
    kind === "time" ? duration(x) + " of training" : kind === "epoch" ? "epoch " + x.toFixed(2) : "step " + digits(x);
  const show = (value, unit) =>
    unit === "%" ? (100 * value).toFixed(2) + " %" : digits(value) + (unit ? " " + unit : "");

  // The index of the value of an ascending list that is nearest to x; skips null.
  const nearest = (list, x) => {
    let best = -1;
    for (let i = 0; i < list.length; ++i)
      if (list[i] !== null && (best < 0 || Math.abs(list[i] - x) < Math.abs(list[best] - x))) best = i;
    return best;
  };

  const key = (style) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("class", "key");
    svg.setAttribute("viewBox", "0 0 40 10");
    svg.setAttribute("aria-hidden", "true");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("class", "line s" + style);
    path.setAttribute("d", "M1 5H39");
    svg.append(path);
    return svg;
  };

  for (const plot of document.querySelectorAll(".plot[data-chart]")) {
    const chart = data.charts.find((c) => c.id === plot.dataset.chart);
    const cross = plot.querySelector(".cross"), tip = plot.querySelector(".tip");
    let at = null;  // on the axis

    const hide = () => {
      cross.hidden = tip.hidden = true;
      at = null;
    };
    const tell = (x) => {
      const kind = axis(), [low, high] = chart.range[kind];
      // All lines show their values at the nearest point of any line.
      let where = null;
      for (const series of chart.series) {
        const i = nearest(series[kind], x);
        if (i >= 0 && (where === null || Math.abs(series[kind][i] - x) < Math.abs(where - x))) where = series[kind][i];
      }
      if (where === null) return hide();
      at = where;
      const share = (where - low) / (high - low);
      cross.style.left = 100 * share + "%";
      tip.style.left = share < .5 ? 100 * share + "%" : "";
      tip.style.right = share < .5 ? "" : 100 * (1 - share) + "%";
      const rows = [Object.assign(document.createElement("b"), {textContent: place(where, kind)})];
      for (const series of chart.series) {
        const i = nearest(series[kind], where);
        if (i < 0 || series.value[i] === null) continue;
        const row = document.createElement("div"), text = document.createElement("span");
        text.textContent = series.name + ": " + show(series.value[i], chart.unit);
        if (series.low && series.low[i] !== null && series.low[i] < series.high[i])
          text.textContent += " (" + show(series.low[i], chart.unit) + " to " + show(series.high[i], chart.unit) + ")";
        row.append(key(series.style), text);
        rows.push(row);
      }
      tip.replaceChildren(...rows);
      cross.hidden = tip.hidden = false;
    };

    const follow = (event) => {
      const box = plot.getBoundingClientRect(), [low, high] = chart.range[axis()];
      const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      tell(low + share * (high - low));
    };
    for (const name of ["pointermove", "pointerdown"]) plot.addEventListener(name, follow);
    // On a touch screen the values stay until another touch.
    plot.addEventListener("pointerleave", (event) => event.pointerType === "touch" || hide());
    document.addEventListener("pointerdown", (event) => plot.contains(event.target) || hide());
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const list = chart.series[0][axis()].filter((x) => x !== null);
      const here = at === null ? -1 : nearest(list, at), page = Math.max(1, Math.round(list.length / 10));
      const to = {
        ArrowRight: here + 1, ArrowLeft: at === null ? list.length - 1 : here - 1, Home: 0, End: list.length - 1,
        PageUp: here + page, PageDown: here - page,
      }[event.key];
      if (event.key === "Escape") hide();
      if (to === undefined || list.length === 0) return;
      event.preventDefault();
      tell(list[Math.min(list.length - 1, Math.max(0, to))]);
    });
  }
  for (const choice of document.querySelectorAll("input[name=axis]"))
    choice.addEventListener("change", () => {
      for (const box of document.querySelectorAll(".cross, .tip")) box.hidden = true;
    });
})();
