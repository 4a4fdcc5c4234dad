// Sort the examples by a column: by number where both cells are numbers; the other way round on a second click.
for (const table of document.querySelectorAll("table.examples")) {
  const body = table.tBodies[0];
  table.tHead.addEventListener("click", (event) => {
    const heading = event.target.closest("th");
    if (!heading) return;
    const up = heading.dataset.order !== "up";
    for (const other of table.tHead.rows[0].cells) delete other.dataset.order;
    heading.dataset.order = up ? "up" : "down";
    const value = (row) => row.cells[heading.cellIndex].textContent.replaceAll(",", "");
    const number = (text) => (text.trim() === "–" ? -Infinity : Number(text));
    const compare = (a, b) => {
      const [x, y] = [number(a), number(b)];
      return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, undefined, { numeric: true }) : x === y ? 0 : x < y ? -1 : 1;
    };
    const rows = [...body.rows].sort((a, b) => (up ? 1 : -1) * compare(value(a), value(b)));
    body.append(...rows);
  });
}
// A link to a rollout opens it.
const open = () => {
  const target = document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) {
    target.open = true;
    target.scrollIntoView();
  }
};
addEventListener("hashchange", open);
open();
