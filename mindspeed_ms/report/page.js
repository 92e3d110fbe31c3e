"use strict";
// What is below the pointer: a line in the chart, and the value of each curve at the point nearest to it.
const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;

function nearest(values, x) {
  let low = 0, high = values.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] < x) low = middle; else high = middle;
  }
  return Math.abs(values[low] - x) <= Math.abs(values[high] - x) ? low : high;
}

function element(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function row(text, kind) {
  const line = document.createElement("div");
  if (kind) {
    const key = document.createElement("i");
    key.className = kind;
    line.append(key);
  }
  line.append(text);
  return line;
}

for (const svg of document.querySelectorAll("svg[data-plot]")) {
  const plot = JSON.parse(svg.dataset.plot);
  const figure = svg.parentElement;
  const pointer = element("line", {class: "pointer", y1: plot.top, y2: plot.bottom, visibility: "hidden"});
  svg.append(pointer);

  svg.addEventListener("pointermove", (event) => {
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const share = Math.min(Math.max((place.x - plot.left) / (plot.right - plot.left), 0), 1);
    const x = plot.x[0] + share * (plot.x[1] - plot.x[0]);
    const found = plot.curves.map((curve) => [curve, nearest(curve.x, x)]);
    const nearby = found.map(([curve, at]) => curve.x[at]);
    const shown = nearby.reduce((best, value) => (Math.abs(value - x) < Math.abs(best - x) ? value : best));
    const left = plot.left + (shown - plot.x[0]) / (plot.x[1] - plot.x[0]) * (plot.right - plot.left);
    pointer.setAttribute("x1", left);
    pointer.setAttribute("x2", left);
    pointer.setAttribute("visibility", "visible");
    tip.replaceChildren(row(`${plot.name} ${shown.toLocaleString("en")}`));
    for (const [curve, at] of found) {
      const aside = curve.x[at] === shown ? "" : ` (at ${curve.x[at].toLocaleString("en")})`;
      tip.append(row(`${curve.label} ${curve.y[at]}${aside}`, `key run${curve.run}`));
    }
    figure.append(tip);
    tip.hidden = false;
    const frame = figure.getBoundingClientRect();
    const across = event.clientX - frame.left;
    tip.style.left = `${across > frame.width / 2 ? across - tip.offsetWidth - 14 : across + 14}px`;
    tip.style.top = `${event.clientY - frame.top + 10}px`;
  });
  svg.addEventListener("pointerleave", () => {
    pointer.setAttribute("visibility", "hidden");
    tip.hidden = true;
  });
}
