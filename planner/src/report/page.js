// Hover and zoom over the picture. Everything shown is set as text, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const charts = document.getElementById("charts");
  const cursor = document.getElementById("cursor");
  const tip = document.getElementById("tip");
  const times = charts.querySelector(".times");
  const plots = [...charts.querySelectorAll("svg.plot")];
  const transfers = new Map(data.transfers);
  let from = 0, to = data.duration, drag = null, hot = null;

  const significant = (value) => value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0);
  const time = (ns) => ns === 0 ? "0" : ns < 1e3 ? `${Math.round(ns)} ns` : ns < 1e6 ? `${significant(ns / 1e3)} µs`
    : ns < 1e9 ? `${significant(ns / 1e6)} ms` : `${significant(ns / 1e9)} s`;
  const bytes = (count) => {
    const names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    while (count >= 1024 && unit + 1 < names.length) { count /= 1024; unit += 1; }
    return `${unit ? count.toFixed(1) : count} ${names[unit]}`;
  };
  // The last row whose first entry is at or before `at`.
  const last = (rows, at) => {
    let low = 0, high = rows.length;
    while (low < high) { const middle = (low + high) >> 1; if (rows[middle][0] <= at) low = middle + 1; else high = middle; }
    return rows[low - 1];
  };
  const within = (row, at) => row && at < row[1] ? row : undefined;

  const show = () => {
    const scale = data.width / Math.max(data.duration, 1);
    for (const plot of plots) {
      plot.setAttribute("viewBox", `${from * scale} 0 ${(to - from) * scale} ${plot.getAttribute("height")}`);
    }
    const rough = (to - from) / 8, power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
    const step = power * [1, 2, 5, 10].find((factor) => power * factor >= rough);
    times.replaceChildren();
    // A label that begins in the last part of the axis would be cut.
    for (let tick = Math.ceil(from / step) * step; tick <= from + (to - from) * .95; tick += step) {
      const label = document.createElement("span");
      label.style.left = `${(tick - from) / (to - from) * 100}%`;
      label.textContent = time(tick);
      times.append(label);
    }
  };
  const timeAt = (event) => {
    const box = plots[0].getBoundingClientRect();
    return from + (event.clientX - box.left) / box.width * (to - from);
  };
  const line = (text, tag = "span", name = "") => {
    const element = document.createElement(tag);
    element.textContent = text;
    element.className = name;
    tip.append(element);
  };
  const describe = (at, transfer) => {
    tip.replaceChildren();
    if (transfer) {
      line(transfer.name, "b");
      line(`${transfer.size}, ${transfer.kind}`);
      line(`${transfer.way}${transfer.urgent ? ", urgent" : ""}: ${transfer.ending}`);
      line(`moved in ${time(transfer.moving)}${transfer.rate ? ` at ${transfer.rate}` : ""}`);
      if (transfer.queued > 0) line(`waited ${time(transfer.queued)} for its turn`);
      return;
    }
    const op = within(last(data.ops, at), at), sample = last(data.memory, at);
    const stall = data.stalls.find((row) => row[0] <= at && at < row[1]);
    line(time(at), "b");
    if (stall) line(`${stall[2]} waits ${time(stall[1] - stall[0])} for ${stall[3]}`, "span", "stalled");
    else if (op) line(op[2]);
    for (const [name, rows] of [["the GPU", data.clocks[0]], ["the thread", data.clocks[1]]]) {
      const span = within(last(rows, at), at);
      if (span) line(`${name}: ${span[2]}, ${time(span[1] - span[0])}`);
    }
    if (sample) {
      line(`${bytes(sample[1] + sample[2] + data.staging)} of ${bytes(data.budget)} held`);
      if (sample[2] > 0) line(`${bytes(sample[2])} of it moving`);
      line(`${bytes(sample[3])} without a budget`);
    }
  };

  charts.addEventListener("pointermove", (event) => {
    const box = plots[0].getBoundingClientRect();
    if (drag) {
      const shift = (drag.x - event.clientX) / box.width * (drag.to - drag.from);
      const bounded = Math.min(Math.max(shift, -drag.from), data.duration - drag.to);
      [from, to] = [drag.from + bounded, drag.to + bounded];
      show();
    }
    const at = timeAt(event);
    const inside = at >= from && at <= to;
    cursor.style.display = tip.style.display = inside ? "block" : "none";
    hot?.classList.remove("hot");
    hot = event.target.closest?.("[data-t]");
    if (!inside) return;
    hot?.classList.add("hot");
    cursor.style.left = `${event.clientX - charts.getBoundingClientRect().left}px`;
    describe(at, hot && transfers.get(Number(hot.dataset.t)));
    const width = tip.offsetWidth, right = event.clientX + 16 + width > innerWidth;
    tip.style.left = `${right ? event.clientX - width - 16 : event.clientX + 16}px`;
    tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8)}px`;
  });
  charts.addEventListener("pointerleave", () => { cursor.style.display = tip.style.display = "none"; });
  charts.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, from, to }; });
  addEventListener("pointerup", () => { drag = null; });
  charts.addEventListener("dblclick", () => { [from, to] = [0, data.duration]; show(); });
  charts.addEventListener("wheel", (event) => {
    // A plain wheel scrolls the page; with a modifier it zooms, as maps do.
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
    event.preventDefault();
    const at = timeAt(event), turn = event.deltaY || event.deltaX;
    const factor = Math.min(Math.max(1.002 ** turn, .2), 5);
    const length = Math.min(Math.max((to - from) * factor, Math.min(1000, data.duration)), data.duration);
    from = Math.min(Math.max(at - (at - from) / (to - from) * length, 0), data.duration - length);
    to = from + length;
    show();
  }, { passive: false });
})();
