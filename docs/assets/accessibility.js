/* Names for parts of a page that the theme leaves without one, for screen readers, and keys for tables that scroll. */
function nameParts() {
  document.querySelector(".md-search[role=dialog]")?.setAttribute("aria-label", "Search");
  document.querySelectorAll(".md-code__nav").forEach((nav, number) => nav.setAttribute("aria-label", `Code ${number + 1}`));
  document.querySelectorAll("nav.md-nav[aria-labelledby]").forEach(nav => {
    nav.setAttribute("aria-label", `Pages: ${nav.getAttribute("aria-labelledby").replace(/\D+/g, " ").trim()} ${
      document.getElementById(nav.getAttribute("aria-labelledby"))?.textContent.trim() ?? ""}`);
    nav.removeAttribute("aria-labelledby");
  });
  document.querySelectorAll(".md-nav--secondary nav.md-nav[aria-label]:not([data-named])").forEach((nav, number) => {
    nav.dataset.named = number;
    nav.setAttribute("aria-label", `Contents ${number + 1}: ${nav.getAttribute("aria-label")}`);
  });
  document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset p:has(> img.flow)").forEach(table => {
    if (table.scrollWidth > table.clientWidth) table.tabIndex = 0;
    else table.removeAttribute("tabindex");
  });
}
nameParts();
new MutationObserver(nameParts).observe(document.body, { childList: true, subtree: true });
addEventListener("resize", nameParts);
addEventListener("load", nameParts);
document.fonts.ready.then(nameParts); /* Then tables have their width. */
