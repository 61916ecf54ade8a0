/** Files that the browser saves. */

/** Saves content, a text or bytes, as a file. */
export function saveFile(name, content, type = "application/octet-stream") {
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(new Blob([content], { type }));
  anchor.download = name;
  anchor.click();
  URL.revokeObjectURL(anchor.href);
}
