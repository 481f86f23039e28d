from saccade.deployment.metrics import Metrics


def test_requests_are_counted_by_path_and_status_and_names_are_quoted():
    metrics = Metrics()
    for status in ("200", "200", "413"):
        metrics.requests.labels("/predict", status).inc()
    metrics.queue.labels('b"\n\\').set_function(lambda: 7)
    lines = metrics.text().splitlines()
    assert 'saccade_requests_total{path="/predict",status="200"} 2.0' in lines
    assert 'saccade_requests_total{path="/predict",status="413"} 1.0' in lines
    assert 'saccade_queue_length{model="b\\"\\n\\\\"} 7.0' in lines
    assert metrics.text().endswith("\n")


def test_buckets_of_batch_sizes_hold_all_that_is_not_above_their_bound():
    metrics = Metrics()
    for size in (1, 2, 4, 200):
        metrics.batches.labels("one").observe(size)
    lines = metrics.text().splitlines()
    for bound, count in {"1.0": 1, "2.0": 2, "4.0": 3, "128.0": 3, "+Inf": 4}.items():
        assert f'saccade_batch_size_bucket{{le="{bound}",model="one"}} {count}.0' in lines
    assert 'saccade_batch_size_sum{model="one"} 207.0' in lines


def test_a_watched_number_is_read_when_it_is_asked_for():
    metrics, values = Metrics(), [1]
    metrics.watch("saccade_upload_bytes", "Bytes.", lambda: values[0])
    values[0] = 5
    assert "saccade_upload_bytes 5.0" in metrics.text().splitlines()


def test_two_servers_in_a_process_count_apart():
    one, two = Metrics(), Metrics()
    one.gone.labels("/predict").inc()
    assert 'saccade_clients_gone_total{path="/predict"} 1.0' in one.text()
    assert "saccade_clients_gone_total{path=" not in two.text()
