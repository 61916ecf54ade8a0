/** Links of a queue to its messages and its dead letters. */
import { html } from "../core/html.js";
import { link } from "../core/router.js";

export function QueueLinks({ vhost, name, type }) {
  return html`<p class="links">
    <a href=${link`messages/${vhost}/${name}`}>Browse messages</a>
    ${type !== "stream" && html`<a href=${link`dead-letters/${vhost}/${name}`}>Dead letters by cause</a>`}
    <a href=${link`topology/${vhost}` + `?name=${encodeURIComponent(name)}`}>Topology around it</a>
  </p>`;
}
