document.querySelectorAll("table").forEach(function (table) {
  var heads = table.querySelectorAll("thead th");
  heads.forEach(function (head, column) {
    head.querySelector("button").addEventListener("click", function () {
      var up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      var body = table.tBodies[0];
      var key = function (row) {
        var cell = row.cells[column];
        if (!cell) { return ""; }
        return cell.dataset.n === undefined ? cell.textContent : Number(cell.dataset.n);
      };
      Array.from(body.rows).sort(function (a, b) {
        var x = key(a), y = key(b), order;
        if (typeof x === "number" && typeof y === "number") { order = x - y; }
        else { order = String(x).localeCompare(String(y)); }
        return up ? order : -order;
      }).forEach(function (row) { body.appendChild(row); });
    });
  });
});
// Paper cannot unfold.
window.addEventListener("beforeprint", function () {
  document.querySelectorAll("details").forEach(function (details) { details.open = true; });
});
