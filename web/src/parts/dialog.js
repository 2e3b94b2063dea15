/* Asking before something is done, and telling when it could not be. */
import { useEffect, useRef, useState } from "preact/hooks";
import { changed, useTopics } from "../lib/frame.js";
import { html } from "../lib/html.js";

let question = null; /* {title, text, verb, danger, act} */
let notice = null; /* {text, bad} */
let noticeTimer = 0;

export function tell(text, bad = false) {
  notice = { text, bad };
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(
    () => {
      notice = null;
      changed("dialog");
    },
    bad ? 9000 : 4000,
  );
  changed("dialog");
}

/* act() is called when the answer is yes; what it throws is told. */
export function confirm(asked) {
  question = asked;
  changed("dialog");
}

export function Modal({ title, children, close }) {
  const box = useRef(null);

  useEffect(() => {
    box.current.showModal();
  }, []);
  return html`<dialog ref=${box} aria-label=${title} onClose=${close}
    onClick=${(event) => event.target === box.current && box.current.close()}>
    <div class="dialog"><h2>${title}</h2>${children}</div>
  </dialog>`;
}

function Question({ title, text, verb, danger, act }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const close = () => {
    question = null;
    changed("dialog");
  };

  async function yes(event) {
    event.preventDefault();
    setBusy(true);
    try {
      await act();
      close();
    } catch (reason) {
      setError(reason.message);
      setBusy(false);
    }
  }

  return html`<${Modal} title=${title} close=${close}>
    <form onSubmit=${yes}>
      <p>${text}</p>
      ${error && html`<p class="bad" role="alert">${error}</p>`}
      <p class="buttons">
        <button type="button" onClick=${close}>Leave it</button>
        <button class=${danger ? "danger" : "main"} disabled=${busy} autofocus>${verb}</button>
      </p>
    </form>
  <//>`;
}

export function Dialogs() {
  useTopics("dialog");
  return html`
    ${question && html`<${Question} key=${question.title} ...${question} />`}
    <div class="notice ${notice ? "shown" : ""} ${notice && notice.bad ? "bad" : ""}" role="status">${notice && notice.text}</div>`;
}
