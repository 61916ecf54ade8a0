/** Values that several components show. */
import { useEffect, useState } from "./html.js";

export class Store {
  constructor(value) {
    this.value = value;
    this.listeners = new Set();
  }

  set(changes) {
    this.value = { ...this.value, ...changes };
    for (const listener of [...this.listeners]) listener(this.value);
  }
}

/** Returns the value of a store, and renders the component again when it changes. */
export function useStore(store) {
  const [value, setValue] = useState(store.value);
  useEffect(() => {
    store.listeners.add(setValue);
    setValue(store.value);
    return () => store.listeners.delete(setValue);
  }, [store]);
  return value;
}
