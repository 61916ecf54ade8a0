/** Links to queues, exchanges, policies, connections and channels, under the names by which people know them. */
import { exchangePart } from "../core/api.js";
import { html } from "../core/html.js";
import { link } from "../core/router.js";

export const exchangeTitle = (name) => name || "(AMQP default)";

/** Returns the name of a connection or a channel without the broker's end, which is the same for all. */
export const shortName = (name) => name.replace(/ -> .*?( \(\d+\))?$/, "$1");

export function QueueLink({ vhost, name }) {
  return html`<a href=${link`queues/${vhost}/${name}`}>${name}</a>`;
}

export function ExchangeLink({ vhost, name }) {
  return html`<a href=${link`exchanges/${vhost}/${exchangePart(name)}`}>${exchangeTitle(name)}</a>`;
}

export function PolicyLink({ kind = "policies", vhost, name }) {
  return html`<a href=${link`${kind}/${vhost}/${name}`}>${name}</a>`;
}

export function ConnectionLink({ name }) {
  return html`<a href=${link`connections/${name}`}>${shortName(name)}</a>`;
}

export function ChannelLink({ name }) {
  return html`<a href=${link`channels/${name}`}>${shortName(name)}</a>`;
}
