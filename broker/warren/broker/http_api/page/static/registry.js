/** All tabs, views and kinds of objects to search: whoever adds a view adds it here. */
import { exchangePart } from "./core/api.js";
import { link } from "./core/router.js";
import { ClusterName } from "./views/admin/cluster.js";
import { DeprecatedFeatures, FeatureFlags } from "./views/admin/features.js";
import { Limits } from "./views/admin/limits.js";
import { OwnUser } from "./views/admin/own_user.js";
import { Parameters } from "./views/admin/parameters.js";
import { Policies } from "./views/admin/policies.js";
import { OperatorPolicyView, PolicyView } from "./views/admin/policy.js";
import { Shovels } from "./views/admin/shovels.js";
import { UserView } from "./views/admin/user.js";
import { Users } from "./views/admin/users.js";
import { VirtualHostView } from "./views/admin/virtual_host.js";
import { VirtualHosts } from "./views/admin/virtual_hosts.js";
import { BrowsableQueues } from "./views/messages/browsable_queues.js";
import { BrowseMessages } from "./views/messages/browse.js";
import { DeadLetterQueues } from "./views/messages/dead_letter_queues.js";
import { DeadLetters } from "./views/messages/dead_letters.js";
import { DelayedMessages, Delays } from "./views/messages/delays.js";
import { ChannelView } from "./views/channel.js";
import { Channels } from "./views/channels.js";
import { ConnectionView } from "./views/connection.js";
import { Connections } from "./views/connections.js";
import { ExchangeView } from "./views/exchange.js";
import { Exchanges } from "./views/exchanges.js";
import { Overview } from "./views/overview.js";
import { QueueView } from "./views/queue.js";
import { Queues } from "./views/queues.js";
import { Stories, StoryView } from "./views/stories/story.js";
import { Topology, TopologyView } from "./views/topology/topology.js";

/** Tabs in their order; `key` opens one after the key g. A tab is shown if the user may see one of its views. */
export const TABS = [
  { id: "overview", title: "Overview", key: "o" },
  { id: "connections", title: "Connections", key: "c" },
  { id: "channels", title: "Channels", key: "h" },
  { id: "exchanges", title: "Exchanges", key: "e" },
  { id: "queues", title: "Queues and Streams", key: "q" },
  { id: "messages", title: "Messages", key: "m" },
  { id: "topology", title: "Topology", key: "t" },
  { id: "admin", title: "Admin", key: "a" },
];

/**
 * Views: `path` is a pattern whose parts with a colon are properties of the component, `tab` its tab, `role` the tag that the
 * user needs. The first view of a tab without parts with a colon is what the tab opens; those with a `title` are a menu of it.
 */
export const VIEWS = [
  { path: "", tab: "overview", view: Overview },
  { path: "connections", tab: "connections", view: Connections },
  { path: "connections/:name", tab: "connections", view: ConnectionView },
  { path: "channels", tab: "channels", view: Channels },
  { path: "channels/:name", tab: "channels", view: ChannelView },
  { path: "exchanges", tab: "exchanges", view: Exchanges },
  { path: "exchanges/:vhost/:name", tab: "exchanges", view: ExchangeView },
  { path: "queues", tab: "queues", view: Queues },
  { path: "queues/:vhost/:name", tab: "queues", view: QueueView },
  { path: "dead-letters", tab: "messages", title: "Dead letters", view: DeadLetterQueues },
  { path: "dead-letters/:vhost/:queue", tab: "messages", view: DeadLetters },
  { path: "messages", tab: "messages", title: "Browse", view: BrowsableQueues },
  { path: "messages/:vhost/:queue", tab: "messages", view: BrowseMessages },
  { path: "stories", tab: "messages", title: "Stories", view: Stories },
  { path: "stories/:vhost/:id", tab: "messages", view: StoryView },
  { path: "delays", tab: "messages", title: "Delays", view: Delays },
  { path: "delays/:vhost/:exchange", tab: "messages", view: DelayedMessages },
  { path: "topology", tab: "topology", view: Topology },
  { path: "topology/:vhost", tab: "topology", view: TopologyView },
  { path: "users", tab: "admin", title: "Users", role: "administrator", view: Users },
  { path: "users/:user", tab: "admin", role: "administrator", view: UserView },
  { path: "vhosts", tab: "admin", title: "Virtual hosts", view: VirtualHosts },
  { path: "vhosts/:vhost", tab: "admin", role: "administrator", view: VirtualHostView },
  { path: "policies", tab: "admin", title: "Policies", view: Policies },
  { path: "policies/:vhost/:name", tab: "admin", role: "policymaker", view: PolicyView },
  { path: "operator-policies/:vhost/:name", tab: "admin", role: "administrator", view: OperatorPolicyView },
  { path: "limits", tab: "admin", title: "Limits", view: Limits },
  { path: "parameters", tab: "admin", title: "Parameters", role: "policymaker", view: Parameters },
  { path: "shovels", tab: "admin", title: "Shovels", role: "monitoring", view: Shovels },
  { path: "feature-flags", tab: "admin", title: "Feature flags", role: "administrator", view: FeatureFlags },
  { path: "deprecated-features", tab: "admin", title: "Deprecated features", role: "administrator", view: DeprecatedFeatures },
  { path: "cluster-name", tab: "admin", title: "Cluster", view: ClusterName },
  { path: "whoami", tab: "admin", title: "Your user", view: OwnUser },
];

/** Kinds of objects that the search box finds. */
export const SEARCHES = [
  { title: "Queue", path: "queues", columns: "name,vhost", link: (row) => link`queues/${row.vhost}/${row.name}` },
  { title: "Exchange", path: "exchanges", columns: "name,vhost", link: (row) => link`exchanges/${row.vhost}/${exchangePart(row.name)}` },
  { title: "Connection", path: "connections", columns: "name,vhost", link: (row) => link`connections/${row.name}` },
  { title: "Channel", path: "channels", columns: "name,vhost", link: (row) => link`channels/${row.name}` },
  { title: "User", path: "users", columns: "name", role: "administrator", link: (row) => link`users/${row.name}` },
  { title: "Virtual host", path: "vhosts", columns: "name", role: "administrator", link: (row) => link`vhosts/${row.name}` },
  { title: "Policy", path: "policies", columns: "name,vhost", role: "policymaker", link: (row) => link`policies/${row.vhost}/${row.name}` },
];
