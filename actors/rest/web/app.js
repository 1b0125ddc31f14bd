// The dashboard: who may see it, and which page is shown. It has no build step; modules are loaded as they are here.

import { Job } from "./pages/job.js";
import { Overview } from "./pages/overview.js";
import { SignIn } from "./pages/sign_in.js";
import { Submit } from "./pages/submit.js";
import { TaskManager, TaskManagers } from "./pages/task_managers.js";
import { forgetToken, hasToken, learn, mayChange, onToken, server } from "./parts/api.js";
import { Fence, Pending } from "./parts/elements.js";
import { html, render, useEffect, useState } from "./parts/html.js";
import { href, useRoute } from "./parts/router.js";

const LOGO = new URL("favicon.svg", import.meta.url).href;
const THEME = "headrace.theme";
const THEMES = { auto: "As the system", light: "Light", dark: "Dark" };

const isDarkOutside = matchMedia("(prefers-color-scheme: dark)");

/** Gives the page the colours that were chosen, or those of the system. */
function showTheme() {
  const theme = localStorage.getItem(THEME) ?? "auto";
  document.documentElement.dataset.theme = theme === "auto" ? (isDarkOutside.matches ? "dark" : "light") : theme;
}

function useTheme() {
  const [theme, setTheme] = useState(() => localStorage.getItem(THEME) ?? "auto");
  useEffect(() => {
    localStorage.setItem(THEME, theme);
    showTheme();
  }, [theme]);
  return [theme, setTheme];
}

function Page({ route }) {
  const [place, id, ...rest] = route;
  if (place === "job" && id) return html`<${Job} key=${id} id=${id} route=${rest} />`;
  if (place === "task-managers") return id ? html`<${TaskManager} id=${id} />` : html`<${TaskManagers} />`;
  if (place === "submit" && server.config.features["web-submit"]) return html`<${Submit} />`;
  return html`<${Overview} />`;
}

function Shell() {
  const route = useRoute();
  const [theme, setTheme] = useTheme();
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(theme) + 1) % names.length];
  const isTaskManagers = route[0] === "task-managers";
  const isSubmit = route[0] === "submit";
  return html`<div class="shell">
    <header class="top">
      <a class="brand" href=${href()}><img src=${LOGO} alt="" width="26" height="26" /><b>Headrace</b></a>
      <span class="cluster" title="This cluster">${server.config.cluster}</span>
      <nav aria-label="Cluster">
        <a href=${href()} aria-current=${isTaskManagers || isSubmit ? undefined : "page"}>Jobs</a>
        <a href=${href("task-managers")} aria-current=${isTaskManagers ? "page" : undefined}>TaskManagers</a>
        ${server.config.features["web-submit"] && html`<a href=${href("submit")} aria-current=${isSubmit ? "page" : undefined}>Submit</a>`}
      </nav>
      <span class="push"></span>
      ${!mayChange() && html`<span class="pill off" title="This token allows looking only">read only</span>`}
      <button class="plain" title=${`Colours: ${THEMES[theme]}`} aria-label=${`Colours: ${THEMES[theme]}; change to ${THEMES[next]}`} onClick=${() => setTheme(next)}>${{ auto: "◐", light: "☀", dark: "☾" }[theme]}</button>
      <button class="plain" title="Forget the token" onClick=${forgetToken}>Sign out</button>
    </header>
    <main><${Fence} at=${route.join("/")}><${Page} route=${route} /></${Fence}></main>
    <footer class="foot">Headrace ${server.config["headrace-version"]} <span class="push"></span> times are those of this browser, event time is in UTC</footer>
  </div>`;
}

function App() {
  const [, setTurn] = useState(0);
  const [error, setError] = useState(null);
  useEffect(() => onToken(() => setTurn((turn) => turn + 1)), []);
  const isKnown = server.config !== null;
  const isLetIn = hasToken();
  useEffect(() => {
    if (!isLetIn || isKnown) return;
    learn().then(() => setTurn((turn) => turn + 1), setError);
  }, [isLetIn, isKnown]);
  if (!isLetIn) return html`<${SignIn} />`;
  if (!isKnown) return html`<main><${Pending} error=${error} /></main>`;
  return html`<${Shell} />`;
}

showTheme();
isDarkOutside.addEventListener("change", showTheme);
render(html`<${App} />`, document.getElementById("app"));
