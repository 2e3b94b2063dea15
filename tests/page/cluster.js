/* What an operator does on the page, with real agents: submitting, following, draining, losing one. */
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import path from "node:path";
import { eventually, Rig } from "./rig.js";

/* Each case has a server with two agents; at the end the browser must not have reported an error. */
function withCluster(run) {
  return async () => {
    const rig = new Rig();
    try {
      await rig.server({ heartbeat_ms: 1000 });
      const [us, hk] = await Promise.all([
        rig.agent("us", { name: "US VPS", role: "main", config: "executors: {review: {command: 'false'}}" }),
        rig.agent("hk", { name: "HK VPS" }),
      ]);
      const page = await rig.open("/");
      await page.waitForSelector('.card[data-node="us"]');
      await page.evaluate(() => (window.sameDocument = true));
      await run({ rig, page, us, hk });
      assert.ok(await page.evaluate(() => window.sameDocument), "the page was reloaded");
      assert.deepEqual(page.troubles, []);
    } finally {
      await rig.end();
    }
  };
}

const gate = (rig, name) => path.join(rig.dir, name);
const open = (rig, name) => writeFileSync(gate(rig, name), "");
const until = (rig, name) => `while [ ! -e ${gate(rig, name)} ]; do sleep 0.05; done`;

async function submitOnPage({ rig, page }) {
  await page.keyboard.press("n");
  await page.fill("dialog [name=type]", "dev");
  await page.fill("dialog [name=title]", "from the page");
  await page.fill("dialog textarea", `echo it began; ${until(rig, "go")}; echo it ends`);
  await page.click("dialog button.main");
  await page.waitForSelector('[data-state="ACKED"]');
  await page.waitForSelector(".logs pre:has-text('it began')");
  open(rig, "go");
  await page.waitForSelector('[data-state="DONE"]');
  await page.waitForSelector(".logs pre:has-text('it ends')");
  await page.waitForSelector(".steps li.ended.DONE");
}

async function stateMovesInTheList({ rig, page }) {
  await page.goto(`${rig.url}/#/jobs`);
  const job = await rig.task({ title: "watched", command: ["sh", "-c", until(rig, "go")] });
  const row = page.locator("tr", { hasText: job.job_id });
  await row.locator(".mark:has-text('running')").waitFor();
  open(rig, "go");
  await row.locator(".mark:has-text('done')").waitFor();
}

async function drainAsksFirst({ rig, page }) {
  const admin = async () => (await rig.get("/v1/nodes/us")).admin;
  await page.click('.card[data-node="us"] h3 a');
  await page.click("button:has-text('Drain')");
  await page.click("dialog button:has-text('Leave it')");
  assert.equal(await admin(), null, "the drain must be confirmed first");
  await page.click("button:has-text('Drain')");
  await page.click("dialog button.danger");
  await page.waitForSelector(".tools .mark:has-text('draining')");
  assert.equal(await admin(), "draining");
  const job = await rig.task({ command: ["true"] });
  assert.equal((await rig.get(`/v1/jobs/${job.job_id}?wait=60s`)).node_id, "hk");
  await page.click("button:has-text('Undrain')");
  await page.click("dialog button.main");
  await page.waitForSelector(".tools .mark:has-text('ready')");
  assert.equal(await admin(), null);
}

async function figuresOfANode({ page }) {
  await page.click('.card[data-node="us"] h3 a');
  for (const label of ["CPU", "Memory", "Disk"]) await page.waitForSelector(`.bar [aria-label="${label}"][aria-valuenow]`);
}

async function logsAreFollowed({ rig, page }) {
  const job = await rig.task({
    /* coloured text; the output stops for a while in the middle of the escape sequence that ends the colour */
    command: [
      "sh",
      "-c",
      `echo first; printf '\\033[1;31mse\\033['; ${until(rig, "1")}; echo 0mcond; ${until(rig, "2")}; echo third`,
    ],
  });
  await page.goto(`${rig.url}/#/jobs/${job.job_id}`);
  const log = page.locator(".logs pre");
  for (const [text, next] of [
    ["first\nse\u001b[", "1"],
    ["first\nsecond\n", "2"],
    ["first\nsecond\nthird\n", null],
  ]) {
    await eventually(
      `the log is ${JSON.stringify(text)}`,
      async () => (await log.count()) && (await log.textContent()) === text,
    );
    if (next) open(rig, next);
  }
}

async function lostAgentIsGrey({ page, hk }) {
  await hk.kill();
  const card = page.locator('.card.off[data-node="hk"]');
  await card.locator("text=its connection closed").waitFor();
  await page.locator(".troubles a:has-text('HK VPS')").click();
  await page.waitForSelector(".why-panel:has-text('connection closed')");
  await page.waitForSelector(".why-panel:has-text('Last heard of')");
}

async function failureLeadsToItsReason({ rig, page }) {
  const job = await rig.task({
    type: "dev",
    title: "breaks",
    max_attempts: 2,
    command: ["sh", "-c", "echo no such host >&2; exit 7"],
  });
  await rig.get(`/v1/jobs/${job.job_id}?wait=60s`);
  await page.goto(`${rig.url}/#/jobs?state=FAILED`);
  await page.click("a.why:has-text('EXIT_7')");
  await page.waitForSelector(".why-panel:has-text('exit code 7')");
  await page.waitForSelector(".logs pre:has-text('no such host')");
  assert.equal(await page.locator(".attempts tbody tr").count(), 2);
  assert.equal(await page.locator(".attempts a.why[href^='#/nodes/']:has-text('EXIT_7')").count(), 2);
  await page.waitForSelector("#explain .chip:has-text('chosen')");
  await page.click("button:has-text('Do it again')");
  await page.waitForSelector(".facts:has-text('Again from')");
}

async function refusalIsExplained({ rig, page }) {
  await Promise.all(["us", "hk"].map((id) => rig.post(`/v1/nodes/${id}/drain`)));
  await page.keyboard.press("n");
  await page.selectOption("dialog [name=wait]", "0");
  await page.click("dialog button.main");
  await page.click("dialog .bad a");
  await page.waitForSelector("#explain:has-text('Why it was refused')");
  await page.waitForSelector("#explain .chip:has-text('2 not ready')");
}

async function cancelStopsIt({ rig, page }) {
  const job = await rig.task({ command: ["sleep", "300"] });
  await page.goto(`${rig.url}/#/jobs/${job.job_id}`);
  await page.waitForSelector('[data-state="ACKED"]');
  await page.click("button:has-text('Cancel')");
  await page.click("dialog button.danger");
  await page.waitForSelector('[data-state="FAILED"]');
  await page.waitForSelector(".why-panel:has-text('CANCELLED')");
}

async function breakerIsShown({ rig, page }) {
  await rig.post("/v1/nodes/hk/drain");
  for (let at = 0; at < 3; at++) {
    const job = await rig.task({ type: "review", max_attempts: 1 });
    await rig.get(`/v1/jobs/${job.job_id}?wait=60s`);
  }
  await page.locator(".troubles a:has-text('gets no review')").click();
  await page.click("button:has-text('Close it')");
  await page.click("dialog button.main");
  await eventually("the breaker is closed", async () => (await rig.get("/v1/breakers")).breakers.length === 0);
  await eventually("the report has all three", async () => (await rig.get("/v1/report?type=review")).total.failed === 3);
  await page.goto(`${rig.url}/#/report`);
  const opened = page.locator(".report tr.sub:has-text('review')", { hasText: "1 breaker opened" });
  await opened.waitFor();
  assert.deepEqual((await opened.locator("td").allTextContents()).slice(0, 5), ["review", "3", "0 %", "3", "0"]);
  await page.click(".report a.why:has-text('1 breaker opened')");
  await page.waitForSelector(".rows a.why:has-text('EXIT_1')");
}

async function deploymentsAreShown({ rig, page }) {
  const spec = {
    package_name: "web",
    package_version: "1",
    command: ["sh", "-c", "while sleep 0.2; do echo served; done"],
  };
  await rig.call("PUT", "/v1/deployments/web", spec);
  await page.click("nav a:has-text('Deployments')");
  await page.click(".rows a:has-text('web')");
  await page.waitForSelector(".tools .mark:has-text('running')", { timeout: 30000 });
  await page.waitForSelector(".logs pre:has-text('served')");
  const owner = (await rig.get("/v1/deployments/web")).address;
  await page.waitForSelector(`.facts a:has-text("${owner}")`);
  await page.click("button:has-text('Disable')");
  await page.waitForSelector(".tools .mark:has-text('disabled')");
}

async function copiesAreShown({ rig, page }) {
  const spec = { command: "exec sleep 1000", count: 2, restart: { min_ms: 60000 } };
  const shown = (text) => page.waitForSelector(`.tools .mark:has-text('${text}')`);
  await rig.call("PUT", "/v1/deployments/many", spec);
  await page.goto(`${rig.url}/#/deployments/many`);
  await shown("2 of 2 ready");
  const cells = await page.$$eval(".panel tbody tr", (rows) => rows.map((row) => row.innerText));
  assert.equal(cells.length, 2);
  for (const [at, copy] of (await rig.get("/v1/deployments/many")).copies.entries()) {
    assert.ok(copy.port > 0);
    for (const text of [`${at}`, copy.address, `${copy.port}`, "well", "running"]) assert.ok(cells[at].includes(text), `${cells[at]}: ${text}`);
  }
  await page.click("button:has-text('Scale')");
  await page.fill("dialog input[name=count]", "3");
  await page.click("dialog button.main");
  await shown("3 of 3 ready");
  await rig.call("PUT", "/v1/deployments/many", { ...spec, command: "exit 3", count: 3 });
  await page.waitForSelector('[data-update="rolled_back"]:has-text("Version 2 is not well")');
  await shown("3 of 3 ready");
  await rig.call("PUT", "/v1/deployments/many", { ...spec, command: "exec sleep 2000", count: 3 });
  await page.waitForFunction(() => !document.querySelector("[data-update]"));
  assert.equal((await rig.get("/v1/deployments/many")).version, 3);
  await page.click("button:has-text('Roll back')");
  await page.click("dialog button.danger");
  await eventually("the deployment is back at version 1", async () => (await rig.get("/v1/deployments/many")).version === 1); /* not 2, which failed */
  await shown("3 of 3 ready");
  await rig.call("DELETE", "/v1/deployments/many");
}

export const clusterCases = [
  ["a task submitted on the page is done without a reload", submitOnPage],
  ["a job's state moves in the list", stateMovesInTheList],
  ["drain asks first", drainAsksFirst],
  ["a node's processor, memory and disk", figuresOfANode],
  ["logs are followed", logsAreFollowed],
  ["an agent that was killed is grey, with the reason", lostAgentIsGrey],
  ["a failure leads to its reason", failureLeadsToItsReason],
  ["a refusal is explained", refusalIsExplained],
  ["cancel stops a job", cancelStopsIt],
  ["an open breaker is shown and closed", breakerIsShown],
  ["a deployment, its owner and its log", deploymentsAreShown],
  ["copies, an update that goes back, scaling and rolling back", copiesAreShown],
].map(([name, run]) => [name, withCluster(run)]);
