// A click on a column heading sorts the table of trials; another click reverses the order.
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("thead th").forEach((heading, column) => {
    const button = document.createElement("button");
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const sign = heading.ariaSort === "ascending" ? -1 : 1;
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const order = (a, b) => sign * key(a).localeCompare(key(b), "en", { numeric: true });
      const byValue = (a, b) => sign * (key(a) - key(b));
      const rows = [...table.tBodies[0].rows];
      rows.sort(heading.classList.contains("number") ? byValue : order);
      table.querySelectorAll("thead th").forEach((other) => { other.ariaSort = null; });
      heading.ariaSort = sign > 0 ? "ascending" : "descending";
      table.tBodies[0].append(...rows);
    });
  });
}
