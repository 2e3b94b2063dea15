/* Visiting the page: with a token, on a phone, by keyboard, light and dark, while the server is away. */
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { Rig } from "./rig.js";

const VIEWS = [
  "/",
  "/#/nodes",
  "/#/nodes/n1",
  "/#/jobs",
  "/#/pools",
  "/#/events",
  "/#/report",
  "/#/limits",
  "/#/deployments",
  "/#/nowhere",
];

function withRig(run) {
  return async () => {
    const rig = new Rig();
    try {
      await run(rig);
    } finally {
      await rig.end();
    }
  };
}

async function someNodes(rig, count = 3) {
  for (let at = 1; at <= count; at++)
    await rig.post("/v1/node/register", {
      node_id: `n${at}`,
      semantic_langs: ["en", "zh"],
      nmt_pairs: [["en", "zh"]],
      tts_langs: ["en", "zh"],
      allowed_types: ["dev"],
      max_concurrent_jobs: 4,
    });
}

async function tokenIsAskedFor(rig) {
  const tokens = { read: "look-only-token", operate: "may-operate-token" };
  const rows = Object.entries(tokens).map(([scope, token]) => ({
    name: scope,
    scopes: [scope],
    sha256: createHash("sha256").update(token).digest("hex"),
  }));
  await rig.server(
    {},
    JSON.stringify({
      tokens: rows.concat({
        name: "node",
        scopes: ["node"],
        sha256: createHash("sha256").update("node-token").digest("hex"),
      }),
    }),
  );
  await rig.call(
    "POST",
    "/v1/node/register",
    { node_id: "n1", allowed_types: ["dev"] },
    { Authorization: "Bearer node-token" },
  );
  const page = await rig.open("/");
  const enter = async (token) => {
    await page.fill("#token", token);
    await page.press("#token", "Enter");
  };
  await enter("node-token");
  await page.waitForSelector(".login .bad:has-text('scope')"); /* the token is valid, but lacks the scope */
  await enter("wrong");
  await page.waitForSelector("text=does not know this token");
  await enter(tokens.read);
  await page.click('.card[data-node="n1"] h3 a');
  await page.click("button:has-text('Drain')");
  await page.click("dialog button.danger");
  await page.waitForSelector("dialog .bad"); /* refused: the token may only read */
  await page.keyboard.press("Escape");
  assert.equal(await page.evaluate(() => localStorage.length), 0, "a token is never kept beyond the tab");
  await page.reload();
  await page.waitForSelector("h1:has-text('n1')"); /* the tab still has the token */
  await page.click("text=forget the token");
  await enter(tokens.operate);
  await page.click("button:has-text('Drain')");
  await page.click("dialog button.danger");
  await page.waitForSelector(".tools .mark:has-text('draining')");
  assert.deepEqual(page.troubles, []);
}

async function readableOnAPhone(rig) {
  await rig.server();
  await someNodes(rig);
  await rig.post("/v1/dispatch/task", {
    type: "dev",
    title: "a task with quite a long title that does not fit on a phone",
  });
  const long = "n".repeat(128);
  await rig.post("/v1/node/register", { node_id: long, name: "W".repeat(128), allowed_types: ["build"] });
  const job = await rig.task({ type: "build", title: "T".repeat(256), max_attempts: 1 });
  const ends = { job_id: job.job_id, attempt_id: 1, node_id: long };
  await rig.post("/v1/job/ack", ends);
  await rig.post("/v1/job/fail", { ...ends, reason: "R".repeat(64) });
  /* the narrowest width that the page has to support; innerWidth would grow with content that does not fit */
  const room = 320;
  const page = await rig.open("/", { viewport: { width: room, height: 700 }, hasTouch: true, isMobile: true });
  await page.waitForSelector('[data-link="live"]', { state: "attached" }); /* earlier events are not sent */
  await rig.post("/v1/node/register", { node_id: `${long.slice(1)}w`, allowed_types: ["build"] }); /* an event for the page */
  for (const view of [...VIEWS, `/#/nodes/${long}`, `/#/jobs/${job.job_id}`]) {
    await page.goto(rig.url + view);
    await page.waitForSelector(view === "/#/events" ? ".rows td" : ".card, .rows td, .panel, .empty");
    const wide = await page.evaluate(() => document.scrollingElement.scrollWidth);
    assert.ok(wide <= room, `${view} is ${wide} px wide on a screen of ${room}`);
  }
  await page.goto(`${rig.url}/#/jobs`);
  await page.tap(".rows tbody tr td");
  await page.waitForSelector(".steps");
  assert.deepEqual(page.troubles, []);
}

async function worksByKeyboard(rig) {
  await rig.server();
  await someNodes(rig);
  const page = await rig.open("/");
  await page.waitForSelector(".card");
  await page.keyboard.press("2");
  await page.waitForSelector("h1:has-text('Nodes')");
  await page.keyboard.press("/");
  await page.keyboard.type("n2");
  await page.waitForFunction(() => document.querySelectorAll(".rows tbody tr").length === 1);
  await page.keyboard.press("ControlOrMeta+A");
  await page.keyboard.press("Delete");
  await page.waitForFunction(() => document.querySelectorAll(".rows tbody tr").length === 3);
  await page.keyboard.press("Escape");
  await page.keyboard.press("j"); /* j moves from anywhere to the first row */
  await page.waitForFunction(() => document.activeElement.textContent.includes("n1"));
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("j");
  await page.waitForFunction(() => document.activeElement.textContent.includes("n3"));
  await page.keyboard.press("Enter");
  await page.waitForSelector("h1:has-text('n3')");
  await page.keyboard.press("Escape");
  await page.waitForSelector("h1:has-text('Nodes')");
  await page.keyboard.press("?");
  await page.waitForSelector("dialog:has-text('move in a table')");
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => !document.querySelector("dialog[open]"));
  assert.deepEqual(page.troubles, []);
}

async function lightAndDark(rig) {
  await rig.server();
  const page = await rig.open("/", { colorScheme: "dark" });
  const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
  await page.waitForSelector(".empty");
  assert.equal(await theme(), "dark");
  await page.keyboard.press("t");
  await page.waitForFunction(() => document.documentElement.dataset.theme === "light");
  await page.reload();
  await page.waitForSelector(".empty");
  assert.equal(await theme(), "light", "the choice is kept");
}

async function tellsWhenItIsStale(rig) {
  const server = await rig.server();
  await someNodes(rig);
  const page = await rig.open("/");
  await page.waitForSelector('[data-link="live"]');
  await page.waitForSelector(".card");
  await page.waitForSelector(".tabs a:has-text('Deployments')");
  await page.evaluate(() => (window.sameDocument = true));
  const asked = page.waitForEvent("requestfailed", (one) => one.url().includes("/v1/deployments"));
  await server.kill();
  await page.waitForSelector(".banner:has-text('Not connected')");
  await page.waitForSelector(".banner:has-text('Stale since')");
  await asked;
  await page.evaluate(() => new Promise(requestAnimationFrame));
  await page.waitForSelector(".tabs a:has-text('Deployments')");
  await page.waitForSelector("main.stale .card"); /* what was known is still shown */
  await rig.server({ listen: `127.0.0.1:${rig.port}` });
  await page.waitForSelector('[data-link="live"]');
  await page.waitForFunction(() => !document.querySelector(".banner"));
  await page.waitForSelector("main:not(.stale) .card");
  assert.ok(await page.evaluate(() => window.sameDocument));
}

async function policyIsInForce(rig) {
  const hostile = "<img src=x onerror=window.inlineRan=1>";
  await rig.server();
  await rig.post("/v1/node/register", { node_id: "n1", name: hostile, allowed_types: ["dev"] });
  await rig.task({ title: hostile, type: "dev" });
  const page = await rig.open("/");
  await page.waitForSelector(`.card h3:has-text("${hostile}")`); /* shown as text, not as markup */
  await page.waitForSelector(`.tasks li:has-text("${hostile}")`);
  assert.deepEqual(page.troubles, []);
  const blocked = await page.evaluate(
    () =>
      new Promise((tell) => {
        document.addEventListener("securitypolicyviolation", (event) => tell(event.effectiveDirective));
        const script = document.createElement("script");
        script.textContent = "window.inlineRan = true";
        document.body.append(script);
      }),
  );
  assert.equal(blocked, "script-src-elem");
  assert.equal(await page.evaluate(() => window.inlineRan), undefined);
  const elsewhere = await page.evaluate(() =>
    fetch("http://127.0.0.1:9/").then(
      () => "let through",
      () => "refused",
    ),
  );
  assert.equal(elsewhere, "refused");
  const named = await page.evaluate(() =>
    performance.getEntriesByType("resource").map((entry) => new URL(entry.name).origin),
  );
  assert.deepEqual(
    [...new Set(named)].filter((origin) => origin !== rig.url && origin !== "http://127.0.0.1:9"),
    [],
  );
}

export const visitCases = [
  ["a token is asked for, and kept in the tab only", tokenIsAskedFor],
  ["readable on a phone", readableOnAPhone],
  ["works by keyboard", worksByKeyboard],
  ["light and dark", lightAndDark],
  ["tells when what it shows is stale", tellsWhenItIsStale],
  ["nothing but its own scripts may run", policyIsInForce],
].map(([name, run]) => [name, withRig(run)]);
