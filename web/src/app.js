/* The page: which view is shown. */
import { Component, render } from "preact";
import { login } from "./lib/api.js";
import { useTopics } from "./lib/frame.js";
import { html } from "./lib/html.js";
import { start } from "./lib/known.js";
import { place } from "./lib/router.js";
import { pick } from "./lib/shape.js";
import { Dialogs } from "./parts/dialog.js";
import { Login } from "./parts/login.js";
import { Shell } from "./parts/shell.js";
import { Deployment, Deployments } from "./views/deployments.js";
import { Events } from "./views/events.js";
import { Job } from "./views/job.js";
import { Jobs } from "./views/jobs.js";
import { Limits } from "./views/limits.js";
import { Node } from "./views/node.js";
import { Nodes } from "./views/nodes.js";
import { Overview } from "./views/overview.js";
import { Pools } from "./views/pools.js";
import { Report } from "./views/report.js";

const VIEWS = {
  nodes: { all: Nodes, one: Node },
  jobs: { all: Jobs, one: Job },
  pools: { all: Pools },
  deployments: { all: Deployments, one: Deployment },
  events: { all: Events },
  report: { all: Report },
  limits: { all: Limits },
};

function View() {
  const [noun, id] = place.path;
  const view = pick(VIEWS, noun);

  useTopics("place");
  if (!noun) return html`<${Overview} />`;
  if (!view) return html`<p class="empty">There is no view "${noun}".</p>`;
  if (id && view.one) return html`<${view.one} id=${id} key=${id} />`;
  return html`<${view.all} />`;
}

/* A view that cannot be drawn leaves the way to the others. */
class Guard extends Component {
  componentDidCatch(error) {
    console.error(error);
    this.setState({ error });
  }

  render({ children }, { error }) {
    return error ? html`<p class="empty">This cannot be shown: ${error.message}</p>` : children;
  }
}

function App() {
  useTopics("login");
  if (login.wanted) return html`<${Login} />`;
  return html`<${Shell}><${Guard} key=${place.path.join("/")}><${View} /><//><//><${Dialogs} />`;
}

render(html`<${App} />`, document.getElementById("app"));
start();
