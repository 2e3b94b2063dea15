/* Runs the page's cases in a real browser against the real program, several at a time, each with its own server; cases that
 * measure time run alone.
 *
 *   node tests/page/run.js            all cases
 *   node tests/page/run.js drain      cases with "drain" in their name
 *
 * Prints `FAILED name` and the reason for each failure, and closes with `N passed, N failed`. */
import { clusterCases } from "./cluster.js";
import { liesCases } from "./lies.js";
import { loadCases } from "./load.js";
import { visitCases } from "./visit.js";

const AT_A_TIME = 3;
const CASE_MS = 300_000;
const wanted = process.argv[2] || "";
let passed = 0;
let failed = 0;

/* A case that takes too long fails. */
function inTime(run) {
  const late = new Promise((_, fail) => {
    setTimeout(() => fail(new Error("the case took too long")), CASE_MS).unref();
  });
  return Promise.race([run(), late]);
}

async function runOne([name, run]) {
  const begun = Date.now();
  try {
    await inTime(run);
    passed++;
    console.log(`ok ${name} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
  } catch (reason) {
    const lines = String(reason.stack || reason).split("\n");
    failed++;
    console.log(`FAILED ${name}\n${lines.map((line) => `    ${line}`).join("\n")}`);
  }
}

async function runAll(cases, atATime) {
  const left = cases.filter(([name]) => name.includes(wanted));
  const worker = async () => {
    while (left.length) await runOne(left.shift());
  };
  await Promise.all(Array.from({ length: atATime }, worker));
}

await runAll([...liesCases, ...clusterCases, ...visitCases], AT_A_TIME); /* the longest cases first */
await runAll(loadCases, 1);
console.log(`\n${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
