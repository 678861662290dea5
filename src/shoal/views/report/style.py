"""The look of the report's page. Its colours are those of web/static/style.css: Okabe and Ito's, which people who
confuse red and green can tell apart."""

STYLE = """
:root{--ink:#1b2430;--soft:#5d6b7e;--paper:#fff;--card:#f6f8fa;--line:#e3e8ee;--done:#00805d;--running:#0067a3;
--wait:#8a6500;--bad:#c04f00;--odd:#8d4888;--off:#64707e}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e6e9ef;--soft:#9aa7b8;--paper:#0f1318;--card:#171c23;
--line:#28303a;--done:#2bc79b;--running:#56b4e9;--wait:#e6b422;--bad:#ff8a3d;--odd:#d79bd0;--off:#8a97a8;
color-scheme:dark}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:980px;margin:0 auto;padding:32px 24px 64px}
h1{margin:0 0 8px;font-size:28px;letter-spacing:-.02em}h2{margin:36px 0 12px;font-size:17px}
h3{margin:0 0 8px;font-size:13px;color:var(--soft);font-weight:600}
.sub,footer{color:var(--soft)}footer{margin-top:48px;font-size:13px}
.chip{display:inline-block;padding:1px 9px;border-radius:10px;white-space:nowrap;margin-bottom:3px;
font-size:.87em;border:1px solid currentColor;color:var(--bad)}
.chip.done{color:var(--done)}.chip.running{color:var(--running)}
.chip.pending,.chip.queued,.chip.preempted{color:var(--wait)}
.chip.unknown,.chip.stuck{color:var(--odd)}.chip.cancelled,.chip.stopped,.chip.new{color:var(--off)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(300px,100%),1fr));gap:16px}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px}
.numbers{display:grid;grid-template-columns:repeat(5,auto);gap:8px;justify-content:space-between}
.numbers b{display:block;font-size:clamp(16px,4.4vw,20px);font-variant-numeric:tabular-nums}
.numbers span{color:var(--soft);font-size:.8em}
.stripe{width:100%;height:8px;margin-top:14px;border-radius:4px}.legend{font-size:13px;color:var(--soft)}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin:0 5px 0 12px;background:var(--done)}
.legend i.lost{background:var(--bad)}.legend i.idle{background:var(--line)}.legend i:first-child{margin-left:0}
.legend i.unseen{background:var(--off);opacity:.5}.s-unseen{fill:var(--off);opacity:.5}
section{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.93em;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:6px 12px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
thead th,tr:first-child>th{color:var(--soft);font-weight:600;font-size:.93em}
td{overflow-wrap:anywhere}.runs td{white-space:nowrap}.runs td:nth-child(3){white-space:normal;min-width:160px}
code{background:var(--card);border:1px solid var(--line);border-radius:5px;padding:1px 6px;font-size:.87em}
.advice{padding-left:18px}.advice li{margin:6px 0}
svg{display:block}.gantt{width:100%}.gantt text{font:11px system-ui,sans-serif;fill:var(--soft)}
.lane{text-anchor:end}.track{fill:var(--card)}.bar{fill:var(--bad)}.histogram{width:110px;height:26px}
.histogram rect{fill:var(--running)}
.s-done{fill:var(--done)}.s-running{fill:var(--running)}.s-lost,.s-failed{fill:var(--bad)}.s-idle{fill:var(--line)}
.s-cancelled,.s-stopped{fill:var(--off)}.s-preempted{fill:var(--wait)}
@media print{body{font-size:11px}main{max-width:none;padding:0 2px}h2{margin-top:22px}
section{break-inside:avoid-page;overflow:visible}
section:last-of-type{break-inside:auto}*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
""".replace("\n", "")
