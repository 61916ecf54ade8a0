/** Names of the virtual hosts that the user may see. */
import { api } from "./api.js";
import { settings } from "./settings.js";
import { Store } from "./store.js";

export const vhosts = new Store({ names: [] });

export async function loadVhosts() {
  const found = await api.get("vhosts", { query: { columns: "name" } });
  const names = found.map((each) => each.name);
  if (JSON.stringify(names) !== JSON.stringify(vhosts.value.names)) vhosts.set({ names });
  if (settings.value.vhost && !names.includes(settings.value.vhost)) settings.set({ vhost: "" });
  return names;
}
