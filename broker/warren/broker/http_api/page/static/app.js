/** The page: login, header, tabs, and the view of the present address. */
import { ConfirmDialog, Notices } from "./components/notices.js";
import { Search } from "./components/search.js";
import { Shortcuts } from "./components/shortcuts.js";
import { api } from "./core/api.js";
import { html, render, useEffect, useMemo, useRef, useState } from "./core/html.js";
import { usePoll } from "./core/poll.js";
import { match, useRoute } from "./core/router.js";
import { authorization, hasRole, logOut, remember, session } from "./core/session.js";
import { INTERVALS, settings } from "./core/settings.js";
import { useStore } from "./core/store.js";
import { loadVhosts, vhosts } from "./core/vhosts.js";
import { TABS, VIEWS } from "./registry.js";

async function enter() {
  const user = await api.get("whoami");
  session.set({ user, message: "" });
}

function Login() {
  const { message } = useStore(session);
  const [busy, setBusy] = useState(false);
  const onSubmit = async (event) => {
    event.preventDefault();
    const form = event.target;
    setBusy(true);
    remember(form.elements.username.value, form.elements.password.value);
    try {
      await enter();
    } catch (error) {
      const refused = error.message.includes("tag") ? "This user has no tag for management, such as `management` or `administrator`." : "Name or password is wrong, or this user may connect from this machine only.";
      logOut(error.status === 401 ? refused : error.message);
      setBusy(false);
    }
  };
  return html`<main class="login">
    <h1>Warren</h1>
    <form onSubmit=${onSubmit}>
      ${message && html`<p class="problem" role="alert">${message}</p>`}
      <label>Username <input name="username" required autofocus autocomplete="username" spellcheck=${false} /></label>
      <label>Password <input name="password" type="password" autocomplete="current-password" /></label>
      <button type="submit" class="primary" disabled=${busy}>Log in</button>
    </form>
  </main>`;
}

function Header() {
  const { user } = useStore(session);
  const { interval, theme, vhost } = useStore(settings);
  const { names } = useStore(vhosts);
  const about = usePoll((signal) => api.get("overview", { query: { columns: "cluster_name,product_version,rabbitmq_version" }, signal }), []);
  usePoll(loadVhosts, []);
  return html`<header>
    <a class="brand" href="#/">Warren</a>
    ${about.data && html`<span class="about">${about.data.product_version} · ${about.data.cluster_name}</span>`}
    <${Search} />
    <div class="choices">
      <label>Virtual host <select value=${vhost} onChange=${(event) => settings.set({ vhost: event.target.value })}>
        <option value="">All</option>${names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
      </select></label>
      <label>Update <select value=${interval} onChange=${(event) => settings.set({ interval: Number(event.target.value) })}>
        ${INTERVALS.map(([seconds, title]) => html`<option key=${seconds} value=${seconds}>${title}</option>`)}
      </select></label>
      <label>Colours <select value=${theme} onChange=${(event) => settings.set({ theme: event.target.value })}>
        <option value="auto">of the system</option><option value="light">light</option><option value="dark">dark</option>
      </select></label>
      <span>User <a href="#/whoami">${user.name}</a></span>
      <button type="button" onClick=${() => logOut()}>Log out</button>
    </div>
  </header>`;
}

function found(parts) {
  for (const view of VIEWS) {
    const properties = match(view.path, parts);
    if (properties) return { view, properties };
  }
  return { view: null, properties: {} };
}

function Frame() {
  const { parts, where } = useRoute();
  const { user } = useStore(session);
  const { view, properties } = found(parts);
  const main = useRef(null);
  const first = useRef(true);
  const allowed = useMemo(() => VIEWS.filter((each) => hasRole(each.role)), [user]);
  const tabs = useMemo(() => TABS.flatMap((tab) => {
    const opened = allowed.find((each) => each.tab === tab.id && !each.path.includes(":"));
    return opened ? [{ ...tab, address: "#/" + opened.path }] : [];
  }), [allowed]);
  useEffect(() => {
    const heading = main.current?.querySelector("h1");
    document.title = heading ? `${heading.textContent} – Warren` : "Warren Management";
    if (!first.current) {
      scrollTo(0, 0);
      heading?.setAttribute("tabindex", "-1");
      heading?.focus({ preventScroll: true });
    }
    first.current = false;
    // On a phone, not all tabs fit.
    document.querySelector("nav.tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [where]);
  const menu = view ? allowed.filter((each) => each.tab === view.tab && each.title) : [];
  let content;
  if (!view) content = html`<h1>Not found</h1><p>This page has no view at this address.</p>`;
  else if (!hasRole(view.role)) content = html`<h1>Not allowed</h1><p class="problem" role="alert">Your user needs the tag ${view.role} for this.</p>`;
  else content = html`<${view.view} key=${where} ...${properties} />`;
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to the content</a>
    <${Header} />
    <nav class="tabs" aria-label="Tabs"><ul>
      ${tabs.map((tab) => html`<li key=${tab.id}><a href=${tab.address} aria-current=${view?.tab === tab.id ? "page" : undefined}>${tab.title}</a></li>`)}
    </ul></nav>
    ${menu.length > 1 && html`<nav class="menu" aria-label="Menu of the tab"><ul>
      ${menu.map((each) => html`<li key=${each.path}><a href=${"#/" + each.path} aria-current=${each === view ? "page" : undefined}>${each.title}</a></li>`)}
    </ul></nav>`}
    <main id="main" ref=${main} tabindex="-1">${content}</main>
    <footer><a href="https://www.rabbitmq.com/docs/http-api-reference" rel="noreferrer">HTTP API</a> · Press <kbd>?</kbd> for the keys</footer>
    <${Notices} /><${ConfirmDialog} /><${Shortcuts} tabs=${tabs} />`;
}

function App() {
  const { user } = useStore(session);
  const [checked, setChecked] = useState(!authorization());
  useEffect(() => {
    if (checked) return;
    enter().catch((error) => {
      if (error.status === 401) logOut();
      else logOut(error.message);
    }).finally(() => setChecked(true));
  }, []);
  if (!checked) return html`<p class="loading">Loading …</p>`;
  return user ? html`<${Frame} />` : html`<${Login} />`;
}

render(html`<${App} />`, document.getElementById("app"));
