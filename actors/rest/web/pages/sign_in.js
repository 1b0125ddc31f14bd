// Asks for the token.

import { signIn } from "../parts/api.js";
import { html, useState } from "../parts/html.js";

export function SignIn() {
  const [token, setToken] = useState("");
  const [error, setError] = useState(null);
  const [isAsking, setIsAsking] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    setIsAsking(true);
    setError(null);
    try {
      await signIn(token.trim());
    } catch (refused) {
      setError(refused.status === 401 ? "The server does not know this token." : refused.message);
      setIsAsking(false);
    }
  };
  return html`<main class="sign-in"><form class="card" onSubmit=${submit}>
    <img src=${new URL("../favicon.svg", import.meta.url).href} alt="" width="44" height="44" />
    <h1>Headrace</h1>
    <p class="muted">This cluster asks for a token. <code>headrace dashboard</code> shows it, and <code>headrace cluster start</code> has printed it.</p>
    <label for="token">Token</label>
    <input id="token" type="password" autocomplete="off" spellcheck="false" autofocus value=${token} onInput=${(event) => setToken(event.target.value)} />
    ${error && html`<div class="notice bad" role="alert">${error}</div>`}
    <button class="primary" disabled=${isAsking || token.trim() === ""}>${isAsking ? "Asking …" : "Open the dashboard"}</button>
    <p class="muted small">It stays in this tab, and is forgotten when the tab is closed.</p>
  </form></main>`;
}
