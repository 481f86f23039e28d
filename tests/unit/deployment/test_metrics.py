from saccade.deployment.metrics import Counter, Gauge, Histogram, Metrics


def test_counters_add_up_by_label_and_labels_are_quoted():
    counter = Counter("seen_total", "What was seen.", ("who",))
    counter.add("a")
    counter.add("a", amount=2)
    counter.add('b"\n\\')
    assert counter.lines() == [
        "# HELP seen_total What was seen.",
        "# TYPE seen_total counter",
        'seen_total{who="a"} 3',
        'seen_total{who="b\\"\\n\\\\"} 1',
    ]


def test_buckets_of_a_histogram_hold_all_that_is_not_above_their_bound():
    histogram = Histogram("size", "Sizes.", (1, 4))
    for value in (1, 2, 4, 9):
        histogram.observe(value)
    assert histogram.lines()[2:] == [
        'size_bucket{le="1"} 1',
        'size_bucket{le="4"} 3',
        'size_bucket{le="+Inf"} 4',
        "size_sum 16",
        "size_count 4",
    ]


def test_gauges_are_read_when_asked():
    values = {("x",): 1.0}
    gauge = Gauge("now", "Now.", lambda: values, ("who",))
    values["x",] = 7.0
    assert gauge.lines()[-1] == 'now{who="x"} 7'


def test_the_whole_text_ends_with_a_line_break():
    assert Metrics().text().endswith("\n")
