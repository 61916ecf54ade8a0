/** Data that stays up to date: it is asked for again and again, but not while nobody looks at the page. */
import { useEffect, useState } from "./html.js";
import { settings } from "./settings.js";
import { useStore } from "./store.js";

const polls = new Set();

/** Asks for all data of the page now, for example after a change. */
export function refresh() {
  for (const ask of [...polls]) ask();
}

/** A request that took long is repeated after this many times as long at the earliest, so that looking costs the broker little. */
const REST = 4;

/**
 * Returns { data, error }: `data` is undefined until the first answer, and stays as it is when a later request fails.
 *
 * `load` gets a signal that aborts its request; it is called again when a value of `dependencies` changes.
 */
export function usePoll(load, dependencies) {
  const { interval } = useStore(settings);
  const [state, setState] = useState({ data: undefined, error: null });
  useEffect(() => {
    let timer;
    let current = null;
    async function ask() {
      clearTimeout(timer);
      current?.abort();
      const mine = (current = new AbortController());
      const began = performance.now();
      let next;
      try {
        const data = await load(mine.signal);
        next = () => ({ data, error: null });
      } catch (error) {
        next = (old) => ({ data: old.data, error });
      }
      if (mine !== current || mine.signal.aborted) return;
      setState(next);
      if (interval && !document.hidden) timer = setTimeout(ask, Math.max(interval * 1000, (performance.now() - began) * REST));
    }
    function onVisibility() {
      if (document.hidden) clearTimeout(timer);
      else if (interval) ask();
    }
    ask();
    polls.add(ask);
    document.addEventListener("visibilitychange", onVisibility);
    return () => {
      clearTimeout(timer);
      current?.abort();
      current = null;
      polls.delete(ask);
      document.removeEventListener("visibilitychange", onVisibility);
    };
  }, [...dependencies, interval]);
  return state;
}
