/* The token field, shown when the server asks for one. */
import { login, setToken } from "../lib/api.js";
import { useTopics } from "../lib/frame.js";
import { html } from "../lib/html.js";
import { retry } from "../lib/known.js";

export function Login() {
  useTopics("login");
  function enter(event) {
    event.preventDefault();
    setToken(event.target.elements.token.value.trim()); /* the field's own: what is drawn may be a frame behind */
    retry();
  }

  return html`<main class="login">
    <form onSubmit=${enter}>
      <h1>This server asks for a token</h1>
      <p class="muted">One with the scope <code>read</code> shows everything; <code>operate</code> also drains nodes and
        cancels jobs. It is kept in this tab only.</p>
      <label for="token">Token</label>
      <input id="token" name="token" type="password" autocomplete="off" spellcheck=${false} required pattern="[!-~]+" autofocus
        aria-invalid=${Boolean(login.why)} />
      ${login.why && html`<p class="bad" role="alert">${login.why}</p>`}
      <p class="buttons"><button class="main">Show the cluster</button></p>
    </form>
  </main>`;
}
