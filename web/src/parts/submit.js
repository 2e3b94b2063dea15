/* Submitting a task by hand. */
import { useState } from "preact/hooks";
import { post } from "../lib/api.js";
import { html } from "../lib/html.js";
import { go, href } from "../lib/router.js";
import { Modal } from "./dialog.js";

function bodyOf(form) {
  const text = (name) => form.get(name).trim();
  const body = { type: text("type"), priority: Number(text("priority")) };
  if (text("title")) body.title = text("title");
  if (text("command")) body.command = ["sh", "-c", text("command")];
  if (text("wait") !== "0") body.queue_ms = Number(text("wait")) * 1000;
  return body;
}

export function Submit({ close }) {
  const [error, setError] = useState(null);

  async function send(event) {
    event.preventDefault();
    try {
      const answer = await post("/v1/dispatch/task", bodyOf(new FormData(event.target)));
      close();
      go("jobs", answer.job_id);
    } catch (reason) {
      setError(reason);
    }
  }

  return html`<${Modal} title="Submit a task" close=${close}>
    <form class="fields" onSubmit=${send}>
      <label>Type <input name="type" required value="task" autocomplete="off" autofocus /></label>
      <label>Title <input name="title" placeholder="what it is for" autocomplete="off" /></label>
      <label class="all">Command <textarea name="command" rows="3" spellcheck=${false} placeholder="echo hello"></textarea></label>
      <label>Priority <select name="priority">${Array.from(
        { length: 10 },
        (_, at) =>
          html`<option value=${9 - at} selected=${at === 4}>${9 - at}${at === 0 ? " highest" : at === 9 ? " lowest" : ""}</option>`,
      )}</select></label>
      <label>If there is no room <select name="wait">
        <option value="60">wait up to a minute</option><option value="3600">wait up to an hour</option>
        <option value="0">refuse it</option></select></label>
      ${
        error &&
        html`<p class="bad all" role="alert">${error.message}
        ${error.problem && error.problem.job_id && html` <a href=${href("jobs", error.problem.job_id)} onClick=${close}>Why?</a>`}</p>`
      }
      <p class="buttons all"><button type="button" onClick=${close}>Leave it</button><button class="main">Submit</button></p>
    </form>
  <//>`;
}
