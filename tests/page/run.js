/* Runs the page's cases in a real browser against the real program.
 *
 *   node tests/page/run.js            all of them
 *   node tests/page/run.js drain      those with "drain" in their name
 *
 * Prints `FAILED name` with its reason for each failure and closes with `N passed, N failed`. */
import { clusterCases } from "./cluster.js";
import { loadCases } from "./load.js";
import { visitCases } from "./visit.js";

const wanted = process.argv[2] || "";
let passed = 0;
let failed = 0;

for (const [name, run] of [...clusterCases, ...visitCases, ...loadCases]) {
  if (!name.includes(wanted)) continue;
  const begun = Date.now();
  let error = null;
  try {
    await run();
    passed++;
  } catch (reason) {
    error = reason;
    failed++;
    console.log(`FAILED ${name}\n${String(reason.stack || reason).split("\n").map((line) => `    ${line}`).join("\n")}`);
  }
  if (!error) console.log(`ok ${name} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
}
console.log(`\n${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
