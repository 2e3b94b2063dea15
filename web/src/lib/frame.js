/* One update a frame: messages that came are applied, who listens is told, and what changed is drawn,
 * all in one go before the browser paints. Its length is measured as "berth.update". */
import { options } from "preact";
import { useEffect, useReducer } from "preact/hooks";

const HIDDEN_MS = 1000; /* a tab nobody sees has no frames: it only keeps its books */
const WORK_MAX = 20000;

let work = []; /* functions to run in the next frame */
const topics = new Map(); /* topic -> set of listeners */
const dirty = new Set();
let draw = null;
let asked = false;

function frame() {
  asked = false;
  const begun = performance.now();
  const now = work;
  work = [];
  for (const run of now) {
    try {
      run();
    } catch (error) {
      console.error(error); /* one message that cannot be used holds up no other */
    }
  }
  for (const topic of dirty) for (const tell of topics.get(topic) || []) tell();
  dirty.clear();
  if (draw) {
    const render = draw;
    draw = null;
    render();
  }
  performance.measure("berth.update", { start: begun, end: performance.now() });
  performance.clearMeasures("berth.update"); /* who observes has it; kept, they would pile up */
}

function ask() {
  if (asked) return;
  asked = true;
  if (document.hidden) setTimeout(frame, HIDDEN_MS);
  else requestAnimationFrame(frame);
}

/* A tab that comes back must not wait for the slow timer of a hidden one. */
document.addEventListener("visibilitychange", () => {
  if (document.hidden || !asked) return;
  asked = false;
  ask();
});

options.debounceRendering = (render) => {
  draw = render;
  ask();
};

/* Runs in the next frame. More than a frame can carry is dropped; the caller reads the state anew. */
export function inFrame(run) {
  if (work.length >= WORK_MAX) return false;
  work.push(run);
  ask();
  return true;
}

export function changed(topic) {
  dirty.add(topic);
  ask();
}

/* The component is drawn again when one of the topics changed. */
export function useTopics(...names) {
  const [, redraw] = useReducer((count) => count + 1, 0);

  useEffect(() => {
    for (const name of names) {
      if (!topics.has(name)) topics.set(name, new Set());
      topics.get(name).add(redraw);
    }
    return () => names.forEach((name) => topics.get(name).delete(redraw));
  }, names);
}
