/* A picture of the output of a command on a terminal: it runs in a real one (script), and its colours become HTML. */
import { execFile } from "node:child_process";
import path from "node:path";
import { promisify } from "node:util";
import { BINARY } from "./rig.js";

const COLUMNS = 104;
const COLOURS = ["#3b4252", "#ff7b72", "#56d364", "#e3b341", "#79c0ff", "#d2a8ff", "#56d4dd", "#c9d1d9"];
const STYLE = `body { margin: 0; background: #0d1117; }
  pre { margin: 0; padding: 14px 18px; width: max-content; color: #c9d1d9; font: 13px/1.35 "DejaVu Sans Mono", monospace; }
  pre b { color: #f0f6fc; } pre i { font-style: normal; color: #8b949e; }`;

const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

/* Select Graphic Rendition: berth uses only bold, faint and the first eight colours. */
function open(codes) {
  const style = { bold: false, faint: false, colour: null };
  for (const code of codes.map(Number)) {
    if (code === 1) style.bold = true;
    else if (code === 2) style.faint = true;
    else if (code >= 30 && code <= 37) style.colour = COLOURS[code - 30];
    else if (code >= 90 && code <= 97) style.colour = COLOURS[code - 90];
  }
  const tag = style.bold ? "b" : style.faint ? "i" : "span";
  return [`<${tag}${style.colour ? ` style="color:${style.colour}"` : ""}>`, `</${tag}>`];
}

export function toHtml(text) {
  let [html, close] = ["", ""];
  for (const piece of text.replaceAll("\r", "").split(/(\x1b\[[0-9;]*m)/)) {
    const found = /^\x1b\[([0-9;]*)m$/.exec(piece);
    if (!found) {
      html += escape(piece);
      continue;
    }
    html += close;
    close = "";
    if (found[1] !== "" && found[1] !== "0") {
      const [tag, end] = open(found[1].split(";"));
      html += tag;
      close = end;
    }
  }
  return html + close;
}

/* Runs a command of berth in a terminal and saves its output as a picture. */
export async function drawTerminal(rig, page, command, file) {
  const PATH = `${path.dirname(BINARY)}:${process.env.PATH}`;
  const env = { ...process.env, PATH, BERTH_ADDR: rig.url, TERM: "xterm", LC_ALL: "C.UTF-8" };
  delete env.NO_COLOR;
  const line = `stty cols ${COLUMNS} rows 40; ${command}`;
  const { stdout } = await promisify(execFile)("script", ["-qec", line, "/dev/null"], { env });
  await page.goto("about:blank");
  const typed = escape(command.replace(" --once", ""));
  await page.setContent(`<style>${STYLE}</style><pre><i>$ ${typed}</i>\n${toHtml(stdout.trimEnd())}</pre>`);
  await page.locator("pre").screenshot({ path: file });
}
