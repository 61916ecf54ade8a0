/** Rendering: `html` makes elements of a template, whose values are always text, never markup. */
import { Fragment, h, render } from "../vendor/preact.module.js";
import htm from "../vendor/htm.module.js";

export { useCallback, useEffect, useMemo, useRef, useState } from "../vendor/preact-hooks.module.js";
export { Fragment, render };
export const html = htm.bind(h);
