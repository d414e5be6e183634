"""The commands that only calculate: `radixgate plan` and `radixgate plan-fleet`, with their reports.

plan          its options are in plan_options, its texts in plan_report and plan_explain, its plot in plan_plot; the
              arithmetic is in workers/planning
plan_fleet    its texts are in fleet_report; the arithmetic is in gateway/planning
"""
