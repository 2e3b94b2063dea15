/* A small chart of the last minutes: its title, its figures now, and the lines. */
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { short } from "../lib/format.js";
import { useTopics } from "../lib/frame.js";
import { columns, WINDOW_S } from "../lib/history.js";
import { html } from "../lib/html.js";
import { colour, theme } from "../lib/theme.js";

const HEIGHT = 118;
const TICKS_MIN = [4, 2];

function axis(format) {
  const line = { stroke: colour("line"), width: 1 };
  return {
    stroke: colour("muted"),
    font: "11px system-ui, sans-serif",
    grid: line,
    ticks: { show: false },
    gap: 4,
    ...(format ? { size: 50, values: (_, ticks) => ticks.map(format), space: 28 } : {}),
  };
}

function optionsFor(box, series, format, most) {
  return {
    width: box.clientWidth,
    height: HEIGHT,
    padding: [6, 4, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 5 }, drag: { x: false, y: false } },
    scales: {
      x: { range: (_, low, high) => [Math.min(low, high - WINDOW_S), high] },
      y: { range: (_, low, high) => [0, Math.max(most, high == null ? 0 : high * 1.1)] },
    },
    axes: [
      {
        ...axis(),
        size: 20,
        splits: (plot) => TICKS_MIN.map((ago) => plot.scales.x.max - 60 * ago),
        values: () => TICKS_MIN.map((ago) => `${ago} min ago`),
      },
      axis(format),
    ],
    series: [
      {},
      ...series.map((one) => ({
        stroke: colour(one.colour),
        width: 1.5,
        points: { show: false },
        fill: one.fill ? `${colour(one.colour)}22` : undefined,
        spanGaps: true,
      })),
    ],
  };
}

/* series: [{name, colour, pick(point), text}], most: the least upper end of the scale */
export function Chart({ title, series, format = short, most = 1, note }) {
  const box = useRef(null);
  const plot = useRef(null);
  const shape = `${theme()} ${series.map((one) => one.name).join()}`;

  useTopics("history", "theme");
  useLayoutEffect(() => {
    plot.current = new uPlot(
      optionsFor(box.current, series, format, most),
      columns(...series.map((one) => one.pick)),
      box.current,
    );
    return () => plot.current.destroy();
  }, [shape]);
  useLayoutEffect(() => plot.current.setData(columns(...series.map((one) => one.pick))));
  useEffect(() => {
    const watch = new ResizeObserver(() => plot.current.setSize({ width: box.current.clientWidth, height: HEIGHT }));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);

  return html`<figure class="chart">
    <figcaption>
      <h3>${title}</h3>
      <p class="chart-now num">${
        series.length
          ? series.map(
              (one) => html`<span key=${one.name} title=${one.title || one.name}><i class="key ${one.colour}"></i>
            <b>${one.text}</b> ${one.name}</span>`,
            )
          : html`<span class="muted">${note}</span>`
      }</p>
    </figcaption>
    <div class="plot" ref=${box} aria-hidden="true"></div>
  </figure>`;
}
