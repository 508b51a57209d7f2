"""Tests that `make slow` runs beside those marked in their files, and what holds the same in `make test` meanwhile.

The whole command is to end within six minutes on two quiet cores. What is here takes a second or more of processor
time, or is one of many cases of one test whose other cases stay; `tests/conftest.py` marks it.
"""

from __future__ import annotations

from collections.abc import Iterable

OTHER_CASES = "other cases of the test"

SLOW: dict[str, dict[str, str]] = {
    "tests/algorithms/test_third_party.py": {
        "test_the_examples_on_three_ranks_give_the_bits_of_one_process": "tests/invariance, with our own",
    },
    "tests/api/test_ranks.py": {
        "test_three_ranks_have_the_bits_of_one": "tests/invariance/test_ranks.py",
    },
    "tests/audit/test_canaries.py": {
        "test_wrong_ones_are_accused_with_a_secure_sum_and_a_clip_that_moves[clip_nothing-discrete": OTHER_CASES,
        "test_wrong_ones_are_accused_with_a_secure_sum_and_a_clip_that_moves[one_noise-normal": "test_six_wrong_ones",
    },
    "tests/audit/test_canary_units.py": {
        "test_an_audit_of_a_run_tries_the_silo_that_pays_most": "the file's other audits, which need no run",
    },
    "tests/benchmarks/test_benchmarks.py": {
        "test_rounds_move_the_bytes_that_were_predicted": "tests/planning/test_measured_by_hand.py",
        "test_rounds_that_send_early_take_turns_with_others": "tests/comm/test_early.py",
        "test_the_bare_loop_over_peft_ends_as_the_runner_does": "test_the_plain_loop_and_the_runner_train_the_same",
        "test_the_benchmark_of_exchanges_stays_between_bound_and_formula": "tests/comm counts the same bytes",
        "test_the_benchmark_of_machines_has_fewer_bytes": "tests/hosts/test_node_sums.py counts them",
        "test_the_sparse_benchmark_measures_what_the_formula_says": "tests/comm/test_allreduce.py",
    },
    "tests/benchmarks/test_gpu.py": {
        "test_a_rehearsal_writes_rows_and_a_table": "its parts",
    },
    "tests/benchmarks/test_speed.py": {
        "test_two_plain_processes_that_share_memory_train_what_one_does": "the written plan's three cases",
    },
    "tests/chat/test_chat.py": {
        "test_a_chat_in_two_processes[True": OTHER_CASES,
    },
    "tests/comm/test_bytes_across.py": {
        "test_a_rank_that_dies_while_vectors_move_from_device_to_device_is_named[aaa": OTHER_CASES,
        "test_vectors_of_a_round_stay_on_the_device_and_have_the_bits_of_one_process[one machine": OTHER_CASES,
    },
    "tests/comm/test_early.py": {
        "test_an_announcement_that_cannot_be_names_the_rank_that_made_it[a client from the end": OTHER_CASES,
        "test_an_announcement_that_cannot_be_names_the_rank_that_made_it[a client that is no number": OTHER_CASES,
        "test_an_announcement_that_cannot_be_names_the_rank_that_made_it[a list": OTHER_CASES,
        "test_an_announcement_that_cannot_be_names_the_rank_that_made_it[a weight that is none": OTHER_CASES,
        "test_an_announcement_that_cannot_be_names_the_rank_that_made_it[another number of weights": OTHER_CASES,
        "test_what_came_early_is_the_sum[auto-3": OTHER_CASES,
        "test_what_came_early_is_the_sum[send-3": OTHER_CASES,
    },
    "tests/comm/test_exchange.py": {
        "test_a_rank_that_dies_within_a_sum_is_named_by_all_others[reduce": OTHER_CASES,
        "test_edge_sizes[reduce-1048576": OTHER_CASES,
        "test_many_windows_pass_in_step[hosts0-reduce": OTHER_CASES,
        "test_many_windows_pass_in_step[hosts0-send": OTHER_CASES,
        "test_many_windows_pass_in_step[hosts1-reduce": OTHER_CASES,
        "test_many_windows_pass_in_step[hosts2-send": OTHER_CASES,
    },
    "tests/comm/test_kept_memory.py": {
        "test_no_vector_is_made_anew_in_a_round[reduce": OTHER_CASES,
    },
    "tests/comm/test_node_sums.py": {
        "test_a_rank_that_dies_within_a_sum_is_named_by_all_others[aabb-2-True]": OTHER_CASES,
        "test_a_rank_that_dies_within_a_sum_is_named_by_all_others[aabb-3": OTHER_CASES,
        "test_a_rank_that_dies_within_a_sum_is_named_by_all_others[aabbcc-1": OTHER_CASES,
        "test_a_rank_that_dies_within_a_sum_is_named_by_all_others[aabbcc-4-False]": OTHER_CASES,
        "test_a_rank_that_dies_within_a_sum_is_named_by_all_others[aabbcc-4-True": OTHER_CASES,
        "test_a_sum_that_was_damaged_between_machines_is_made_again_of_single_updates[aabb-F": OTHER_CASES,
        "test_a_sum_that_was_damaged_between_machines_is_made_again_of_single_updates[aabbcc-F": OTHER_CASES,
        "test_a_sum_that_was_damaged_between_machines_is_made_again_of_single_updates[aabbcc-T": OTHER_CASES,
        "test_one_key_turns_it_off": "tests/hosts/test_node_sums.py",
        "test_payloads_through_a_device_go_between_leaders_too": "test_over_nccl.py and test_transport.py",
        "test_the_bits_are_those_of_one_process": "tests/hosts/test_node_sums.py compares digests",
    },
    "tests/comm/test_over_nccl.py": {
        "test_leaders_of_machines_exchange_over_it": "tests/comm/test_node_sums.py, over gloo",
        "test_many_windows_pass_in_step": "test_a_round_has_the_bits_of_one_process",
    },
    "tests/comm/test_payload_checks.py": {
        "test_a_window_that_was_damaged_on_its_way_never_counts[send_sums-False": OTHER_CASES,
    },
    "tests/comm/test_rendezvous.py": {
        "test_a_rank_lost_in_a_collective_is_named_on_all_others[19]": OTHER_CASES,
        "test_a_rank_that_is_late_is_waited_for_longer_than_one_that_is_silent[0]": OTHER_CASES,
        "test_a_silent_rank_is_named_on_all_others[2]": OTHER_CASES,
        "test_a_stopped_process_is_named_on_all_others[1]": OTHER_CASES,
    },
    "tests/comm/test_round_trips.py": {
        "test_a_round_takes_five_round_trips_and_one_that_is_evaluated_and_saved_eight[2]": OTHER_CASES,
    },
    "tests/comm/test_shared.py": {
        "test_ranks_that_are_not_on_one_machine_use_sockets": "tests/hosts",
        "test_the_bits_are_those_of_sockets[2": OTHER_CASES,
        "test_the_bits_are_those_of_sockets[4": OTHER_CASES,
        "test_workers_read_the_servers_vector_where_it_is[False-False": OTHER_CASES,
        "test_workers_read_the_servers_vector_where_it_is[True-True": OTHER_CASES,
    },
    "tests/comm/test_signing.py": {
        "test_a_rank_with_another_secret_ends_with_its_own_code_and_the_server_waits[0": OTHER_CASES,
        "test_a_rank_with_another_secret_ends_with_its_own_code_and_the_server_waits[1-wrong0-2]": OTHER_CASES,
        "test_a_rank_with_another_secret_ends_with_its_own_code_and_the_server_waits[12": OTHER_CASES,
    },
    "tests/comm/test_sum_slices.py": {
        "test_a_number_of_a_slice_that_cannot_be_does_not_count[-1.0-0": OTHER_CASES,
        "test_a_number_of_a_slice_that_cannot_be_does_not_count[-inf": OTHER_CASES,
        "test_a_number_of_a_slice_that_cannot_be_does_not_count[1e+308-0": OTHER_CASES,
        "test_a_number_of_a_slice_that_cannot_be_does_not_count[inf-0": OTHER_CASES,
        "test_a_number_of_a_slice_that_cannot_be_does_not_count[nan-0": OTHER_CASES,
    },
    "tests/comm/test_transport.py": {
        "test_many_windows_pass_in_step[hosts0-reduce]": OTHER_CASES,
        "test_staged_payloads_have_the_bits_and_the_byte_counts_of_direct_ones[2": OTHER_CASES,
    },
    "tests/configs/test_openfedllm_configs.py": {
        "test_small_rows_train[fedyogi": OTHER_CASES,
        "test_value_alignment_trains_by_every_kind_of_algorithm[fedprox": OTHER_CASES,
        "test_value_alignment_trains_by_every_kind_of_algorithm[local": OTHER_CASES,
    },
    "tests/core/test_fused_add.py": {
        "test_a_step_has_the_same_bits_with_other_instructions[avx2": OTHER_CASES,
        "test_a_step_has_the_same_bits_with_other_instructions[avx512": "`default`, where there are such",
    },
    "tests/core/test_streams.py": {
        "test_a_run_without_stdin_stdout_and_stderr_ends_as_any_other": "the file's other streams",
    },
    "tests/data/own/test_init_cases.py": {
        "test_what_is_proposed_trains[own T5": OTHER_CASES,
        "test_what_is_proposed_trains[spans": OTHER_CASES,
    },
    "tests/data/test_bm25.py": {
        "test_jax_is_not_imported_with_it_for_it_would_take_the_gpu": "test_jax_is_hidden",
    },
    "tests/data/test_prepare.py": {
        "test_several_processes_may_prepare_the_same_folder_at_once": "the file's other folders",
    },
    "tests/docs/test_notebooks.py": {
        "test_a_notebook_shows_what_is_stored_in_it[own_algorithm": OTHER_CASES,
        "test_a_notebook_shows_what_is_stored_in_it[own_data": "tests/docs/test_own_data_page.py",
        "test_a_notebook_shows_what_is_stored_in_it[preferences": OTHER_CASES,
    },
    "tests/docs/test_trainers_page.py": {
        "test_config_function_and_script_give_the_same_bits": "tests/trainers/, each way by itself",
    },
    "tests/faults/test_coming_back.py": {
        "test_a_lost_rank_is_let_in_before_the_next_round_with_its_clients_states[10": OTHER_CASES,
        "test_a_rank_that_left_the_door_again_is_not_waited_for": "test_a_lost_rank_is_let_in_before_the_next_round",
    },
    "tests/faults/test_going_on.py": {
        "test_a_killed_worker_is_gone_and_the_rest_is_as_in_one_process[aggregate": OTHER_CASES,
        "test_a_killed_worker_is_gone_and_the_rest_is_as_in_one_process[broadcast": OTHER_CASES,
        "test_a_killed_worker_is_gone_and_the_rest_is_as_in_one_process[evaluate": OTHER_CASES,
        "test_a_killed_worker_is_gone_and_the_rest_is_as_in_one_process[header": OTHER_CASES,
        "test_a_killed_worker_is_gone_and_the_rest_is_as_in_one_process[payload": OTHER_CASES,
        "test_a_killed_worker_is_gone_and_the_rest_is_as_in_one_process[report-": OTHER_CASES,
        "test_a_killed_worker_is_gone_and_the_rest_is_as_in_one_process[scores": OTHER_CASES,
        "test_a_killed_worker_is_gone_and_the_rest_is_as_in_one_process[train-at1": OTHER_CASES,
        "test_a_killed_worker_is_gone_and_the_rest_is_as_in_one_process[weights": OTHER_CASES,
        "test_by_the_real_clock_the_jobs_of_lost_clients_are_written_down_and_replayed[header": OTHER_CASES,
        "test_jobs_of_lost_clients_are_arrivals_of_weight_0[sent": OTHER_CASES,
        "test_jobs_of_lost_clients_are_arrivals_of_weight_0[train-": OTHER_CASES,
        "test_where_all_take_part_it_equals_a_run_in_which_those_clients_always_fail[weights to train": OTHER_CASES,
        "test_where_messages_travel_the_rest_goes_on_as_in_one_process[replicated": OTHER_CASES,
        "test_where_updates_travel_early_the_rest_goes_on_as_in_one_process[all": OTHER_CASES,
        "test_where_updates_travel_early_the_rest_goes_on_as_in_one_process[report": OTHER_CASES,
        "test_where_updates_travel_early_the_rest_goes_on_as_in_one_process[sent as": OTHER_CASES,
        "test_where_updates_travel_early_the_rest_goes_on_as_in_one_process[sent early": OTHER_CASES,
        "test_where_updates_travel_early_the_rest_goes_on_as_in_one_process[sums": OTHER_CASES,
        "test_where_updates_travel_early_the_rest_goes_on_as_in_one_process[train": OTHER_CASES,
    },
    "tests/faults/test_kill.py": {
        "test_a_checkpoint_that_a_kill_leaves_unfinished_does_not_exist[before": OTHER_CASES,
        "test_a_rank_killed_in_any_phase_costs_at_most_a_round[server-aggregate": OTHER_CASES,
        "test_a_rank_killed_in_any_phase_costs_at_most_a_round[server-broadcast": OTHER_CASES,
        "test_a_rank_killed_in_any_phase_costs_at_most_a_round[server-checkpoint": OTHER_CASES,
        "test_a_rank_killed_in_any_phase_costs_at_most_a_round[server-evaluate": OTHER_CASES,
        "test_a_rank_killed_in_any_phase_costs_at_most_a_round[server-header": OTHER_CASES,
        "test_a_rank_killed_in_any_phase_costs_at_most_a_round[server-init": OTHER_CASES,
        "test_a_rank_killed_in_any_phase_costs_at_most_a_round[server-payload": OTHER_CASES,
        "test_a_rank_killed_in_any_phase_costs_at_most_a_round[server-preflight": OTHER_CASES,
        "test_a_rank_killed_in_any_phase_costs_at_most_a_round[server-train": OTHER_CASES,
        "test_a_rank_killed_in_any_phase_costs_at_most_a_round[worker-aggregate": OTHER_CASES,
        "test_a_rank_killed_in_any_phase_costs_at_most_a_round[worker-broadcast": OTHER_CASES,
        "test_a_rank_killed_in_any_phase_costs_at_most_a_round[worker-checkpoint": OTHER_CASES,
        "test_a_rank_killed_in_any_phase_costs_at_most_a_round[worker-evaluate": OTHER_CASES,
        "test_a_rank_killed_in_any_phase_costs_at_most_a_round[worker-header": OTHER_CASES,
        "test_a_rank_killed_in_any_phase_costs_at_most_a_round[worker-init": OTHER_CASES,
        "test_a_rank_killed_in_any_phase_costs_at_most_a_round[worker-payload": OTHER_CASES,
        "test_a_rank_killed_in_any_phase_costs_at_most_a_round[worker-preflight": OTHER_CASES,
        "test_a_second_kill_while_it_resumes_or_in_the_next_round_changes_nothing[init": OTHER_CASES,
        "test_a_second_kill_while_it_resumes_or_in_the_next_round_changes_nothing[train": OTHER_CASES,
        "test_when_the_restarts_are_used_up_the_status_says_so[worker": OTHER_CASES,
    },
    "tests/faults/test_kill_adapters.py": {
        "test_a_kill_in_any_phase_leaves_base_and_factors_as_they_would_be[broadcast-2": OTHER_CASES,
        "test_a_kill_in_any_phase_leaves_base_and_factors_as_they_would_be[checkpoint-0": OTHER_CASES,
    },
    "tests/faults/test_kill_async.py": {
        "test_a_kill_at_any_instant_changes_nothing[four bits": OTHER_CASES,
        "test_a_kill_within_a_job_repeats_at_most_so_many_steps_of_it[real": OTHER_CASES,
        "test_killed_ranks_go_on_on_another_number_of_ranks[1-2-2": OTHER_CASES,
    },
    "tests/faults/test_kill_fragments.py": {
        "test_killed_around_the_step_of_the_sending[rounds-b-5": OTHER_CASES,
        "test_killed_around_the_step_of_the_sending[rounds-d-6": OTHER_CASES,
        "test_killed_around_the_step_of_the_sending[steps-b-5": OTHER_CASES,
    },
    "tests/faults/test_killed_trainers.py": {
        "test_a_rank_killed_within_a_training_costs_no_bit": "tests/faults/test_kill.py, without a trainer",
    },
    "tests/faults/test_repeated_losses.py": {
        "test_the_others_go_on_without_it[b": OTHER_CASES,
        "test_the_run_ends_once_and_names_the_client": "the file's other losses",
    },
    "tests/faults/test_saving.py": {
        "test_a_rank_killed_between_checkpoints_by_the_clock_leaves_no_trace[at the end-0": OTHER_CASES,
        "test_a_rank_killed_between_checkpoints_by_the_clock_leaves_no_trace[at the end-2": OTHER_CASES,
        "test_a_rank_killed_between_checkpoints_by_the_clock_leaves_no_trace[often-0": OTHER_CASES,
        "test_a_rank_killed_while_the_server_writes_costs_a_round_more[kill:phase=aggregate": OTHER_CASES,
        "test_a_rank_killed_while_the_server_writes_costs_a_round_more[kill:phase=train": OTHER_CASES,
    },
    "tests/faults/test_signals.py": {
        "test_sigterm_to_one_rank_in_any_phase_stops_all_and_loses_nothing[aggregate": OTHER_CASES,
        "test_sigterm_to_one_rank_in_any_phase_stops_all_and_loses_nothing[broadcast": OTHER_CASES,
        "test_sigterm_to_one_rank_in_any_phase_stops_all_and_loses_nothing[checkpoint-0": OTHER_CASES,
        "test_sigterm_to_one_rank_in_any_phase_stops_all_and_loses_nothing[evaluate": OTHER_CASES,
        "test_sigterm_to_one_rank_in_any_phase_stops_all_and_loses_nothing[header": OTHER_CASES,
        "test_sigterm_to_one_rank_in_any_phase_stops_all_and_loses_nothing[init": OTHER_CASES,
        "test_sigterm_to_one_rank_in_any_phase_stops_all_and_loses_nothing[payload-2": OTHER_CASES,
        "test_sigterm_to_one_rank_in_any_phase_stops_all_and_loses_nothing[preflight": OTHER_CASES,
    },
    "tests/faults/test_under_way.py": {
        "test_at_most_n_steps_are_repeated[1-": OTHER_CASES,
        "test_at_most_n_steps_are_repeated[11-": OTHER_CASES,
        "test_at_most_n_steps_are_repeated[12-": OTHER_CASES,
        "test_at_most_n_steps_are_repeated[4-": OTHER_CASES,
        "test_at_most_n_steps_are_repeated[8-save": OTHER_CASES,
        "test_two_ranks_that_hold_unlike_parts_of_a_model": "the same with whole models",
    },
    "tests/faults/test_updates.py": {
        "test_one_clients_bad_update_is_left_out_and_named[a-explode": OTHER_CASES,
        "test_one_clients_bad_update_is_left_out_and_named[b-raise": OTHER_CASES,
        "test_one_clients_bad_update_is_left_out_and_named[c-explode": OTHER_CASES,
        "test_one_clients_bad_update_is_left_out_and_named[c-nan": OTHER_CASES,
        "test_one_clients_bad_update_is_left_out_and_named[c-raise": OTHER_CASES,
        "test_one_clients_bad_update_is_left_out_and_named[d-nan": OTHER_CASES,
    },
    "tests/hosts/test_after_the_end.py": {
        "test_one_that_is_killed_while_it_hears_may_come_once_more": "test_it_hears_of_the_end",
        "test_one_whose_states_are_lost_is_told_so_and_the_server_stays_done": "test_it_hears_of_the_end",
        "test_the_wait_for_a_server_that_is_gone_is_bounded": "test_the_server_stays_only_as_long_as_is_said",
    },
    "tests/hosts/test_disks.py": {
        "test_a_server_restored_from_a_backup_says_that_it_is_older_and_deletes_nothing[restart": OTHER_CASES,
        "test_clients_without_a_state_need_no_common_disk_to_resume": "test_states_stay_with_their_clients",
    },
    "tests/hosts/test_held_states.py": {
        "test_a_run_that_dies_before_its_first_checkpoint_begins_again_by_itself[train": OTHER_CASES,
        "test_a_server_restored_from_an_older_backup_takes_nothing_newer_away": "the server whose folder is gone",
        "test_newer_states_without_a_note_are_passed_over": "test_a_server_restored_from_an_older_backup",
        "test_what_was_given_up_is_there_until_the_new_run_has_a_checkpoint": "the file's runs that begin again",
    },
    "tests/hosts/test_node_sums.py": {
        "test_a_lost_leader_or_another_rank_is_named_and_the_run_resumes": "test_the_others_go_on_without_a_leader",
        "test_the_others_go_on_without_a_leader_or_another_rank[3": OTHER_CASES,
        "test_the_wire_carries_one_sum_and_one_broadcast_for_all_ranks_of_a_host[2": OTHER_CASES,
    },
    "tests/hosts/test_under_way.py": {
        "test_a_silo_switched_off_at_97_per_cent_of_a_round": "tests/faults/test_under_way.py, on one machine",
    },
    "tests/invariance/test_alignment.py": {
        "test_a_run_whose_vectors_lie_elsewhere_ends_with_the_same_bits[ditto": OTHER_CASES,
        "test_a_run_whose_vectors_lie_elsewhere_ends_with_the_same_bits[feda_top50": OTHER_CASES,
        "test_a_run_whose_vectors_lie_elsewhere_ends_with_the_same_bits[fedmatch": OTHER_CASES,
        "test_a_run_whose_vectors_lie_elsewhere_ends_with_the_same_bits[scaffold": OTHER_CASES,
        "test_a_run_whose_vectors_lie_elsewhere_ends_with_the_same_bits[smoke_ffw_full": OTHER_CASES,
    },
    "tests/invariance/test_async_ranks.py": {
        "test_any_number_of_ranks_gives_the_bits_of_one_process[2": OTHER_CASES,
    },
    "tests/invariance/test_fewshot_ranks.py": {
        "test_any_number_of_ranks_gives_the_bits_of_one_process[2": OTHER_CASES,
    },
    "tests/invariance/test_four_bits.py": {
        "test_any_number_of_ranks_gives_the_bits_of_one_process[1-worker": OTHER_CASES,
    },
    "tests/invariance/test_interrupts.py": {
        "test_a_signal_at_any_moment_changes_nothing[checkpoints beside training": OTHER_CASES,
        "test_a_signal_at_any_moment_changes_nothing[checkpoints by": OTHER_CASES,
        "test_a_signal_at_any_moment_changes_nothing[ditto": OTHER_CASES,
        "test_a_signal_at_any_moment_changes_nothing[fedavg": OTHER_CASES,
        "test_a_signal_at_any_moment_changes_nothing[local": OTHER_CASES,
        "test_a_signal_at_any_moment_changes_nothing[rate over rounds": OTHER_CASES,
        "test_a_signal_at_any_moment_changes_nothing[stepping": OTHER_CASES,
        "test_a_signal_at_any_moment_changes_nothing[trained": OTHER_CASES,
        "test_a_signal_repeats_no_step_where_they_are_saved[ditto": OTHER_CASES,
        "test_a_signal_repeats_no_step_where_they_are_saved[rate": OTHER_CASES,
        "test_a_signal_to_one_of_three_ranks_stops_all_and_loses_nothing[15]": OTHER_CASES,
        "test_a_signal_to_one_of_three_ranks_stops_all_and_loses_nothing[1]": OTHER_CASES,
        "test_a_signal_to_one_of_three_ranks_stops_all_and_loses_nothing[4]": OTHER_CASES,
    },
    "tests/invariance/test_previous_scale.py": {
        "test_any_number_of_ranks_gives_the_bits_of_one_process[2]": OTHER_CASES,
        "test_any_number_of_ranks_gives_the_bits_of_one_process[3-": OTHER_CASES,
        "test_any_number_of_ranks_gives_the_bits_of_one_process[5]": OTHER_CASES,
    },
    "tests/invariance/test_pseudo_labels.py": {
        "test_any_number_of_ranks_gives_the_bits_of_one_process[2": OTHER_CASES,
        "test_any_number_of_ranks_gives_the_bits_of_one_process[7": OTHER_CASES,
        "test_stopped_in_the_middle_and_resumed_gives_the_same_bits[20-silo_augmented": OTHER_CASES,
        "test_stopped_in_the_middle_and_resumed_gives_the_same_bits[65-fewfedweight": OTHER_CASES,
        "test_stopped_in_the_middle_and_resumed_gives_the_same_bits[65-metaweighting": OTHER_CASES,
    },
    "tests/invariance/test_quantized.py": {
        "test_every_rule_trains_writes_and_resumes_over_a_quantised_base[fedit": OTHER_CASES,
    },
    "tests/invariance/test_ranks.py": {
        "test_any_number_of_ranks_gives_the_bits_of_one_process[2]": OTHER_CASES,
        "test_any_number_of_ranks_gives_the_bits_of_one_process[3-reduce": OTHER_CASES,
        "test_any_number_of_ranks_gives_the_bits_of_one_process[3-send": OTHER_CASES,
        "test_any_number_of_ranks_gives_the_bits_of_one_process[3-server-works": "tests/invariance/test_workers.py",
        "test_any_number_of_ranks_gives_the_bits_of_one_process[9-idle-rank": OTHER_CASES,
        "test_killed_and_resumed_on_another_number_of_ranks_gives_the_same_bits[private_head": OTHER_CASES,
    },
    "tests/invariance/test_references.py": {
        "test_interrupted_and_resumed_gives_the_same_bits[20": OTHER_CASES,
    },
    "tests/invariance/test_seeds.py": {
        "test_any_number_of_ranks_gives_the_bits_of_one_process[2": OTHER_CASES,
    },
    "tests/invariance/test_server_share.py": {
        "test_a_signal_at_any_moment_changes_nothing": "tests/invariance/test_interrupts.py",
        "test_any_number_of_ranks_gives_the_bits_of_one_process[2": OTHER_CASES,
        "test_any_number_of_ranks_gives_the_bits_of_one_process[6": OTHER_CASES,
    },
    "tests/invariance/test_trainers.py": {
        "test_any_number_of_ranks_gives_the_bits": "tests/trainers/test_script.py: one digest however many ranks",
        "test_interrupted_and_resumed": "tests/trainers/test_over_rounds.py",
    },
    "tests/invariance/test_workers.py": {
        "test_a_client_that_fails_on_one_rank_fails_on_all_ranks_of_the_worker[(2": OTHER_CASES,
        "test_a_client_that_fails_on_one_rank_fails_on_all_ranks_of_the_worker[(3": "the first worker's two ranks",
        "test_a_client_that_fails_on_one_rank_fails_on_all_ranks_of_the_worker[(4": "the first worker's two ranks",
        "test_a_signal_to_a_rank_that_does_not_lead_stops_all_and_loses_nothing[None": OTHER_CASES,
        "test_workers_of_two_ranks_give_the_bits_of_one_process[server-works": OTHER_CASES,
        "test_workers_of_two_ranks_give_the_bits_of_one_process[two-and-one": OTHER_CASES,
    },
    "tests/launchers/test_local.py": {
        "test_a_gpu_that_fails_ends_the_run_with_its_client_and_step": "tests/faults, in one process",
        "test_a_run_goes_on_without_a_lost_worker": "tests/faults/test_going_on.py, with the same bits",
    },
    "tests/launchers/test_real_slurm.py": {
        "test_a_job_at_its_limit_is_requeued_and_resumes_to_the_same_bits": "test_a_batch_file_told_to_stop",
    },
    "tests/lifecycle/test_checked_noise.py": {
        "test_checks_of_noised_rounds_change_no_bit[changes0-all": OTHER_CASES,
    },
    "tests/lifecycle/test_checked_steps.py": {
        "test_a_share_of_the_leaves_is_stepped_as_the_whole[adamw": OTHER_CASES,
        "test_the_others_hear_who_has_found_something_wrong_and_what[clients1": OTHER_CASES,
    },
    "tests/lifecycle/test_exported_models.py": {
        "test_the_exported_model_scores_as_in_the_run[feda]": OTHER_CASES,
        "test_the_exported_model_scores_as_in_the_run[fedmatch": OTHER_CASES,
        "test_the_exported_model_scores_as_in_the_run[re2": OTHER_CASES,
        "test_the_exported_model_scores_as_in_the_run[smoke_ffw_full": OTHER_CASES,
    },
    "tests/lifecycle/test_idle_base.py": {
        "test_a_server_that_does_not_evaluate_holds_no_base[sb": OTHER_CASES,
    },
    "tests/lifecycle/test_lost_records.py": {
        "test_a_run_ends_with_its_result_or_with_a_reason_whatever_file_is_refused[config.yaml-full": OTHER_CASES,
        "test_a_run_ends_with_its_result_or_with_a_reason_whatever_file_is_refused[log.rank0.txt-folder": OTHER_CASES,
        "test_a_run_ends_with_its_result_or_with_a_reason_whatever_file_is_refused[tensorboard-full": OTHER_CASES,
    },
    "tests/lifecycle/test_parties.py": {
        "test_a_key_of_its_own_making_is_refused_before_it_speaks": "a silo that lists itself",
        "test_a_silo_with_another_key_for_the_server_does_not_believe_it": "a silo that lists itself",
        "test_keys_in_place_of_a_secret_change_no_bit[False": OTHER_CASES,
        "test_parties_that_get_different_weights_stop_before_anything_leaves_them[False": OTHER_CASES,
        "test_the_key_of_another_member_is_refused": "a silo that lists itself",
    },
    "tests/lifecycle/test_quantized_answers.py": {
        "test_export_writes_the_model_that_was_evaluated[nf4-local": OTHER_CASES,
        "test_predict_and_chat_answer_as_the_engine_did[int8-bf16": OTHER_CASES,
        "test_predict_and_chat_answer_as_the_engine_did[int8]": "nf4, and the export of int8",
        "test_predict_and_chat_answer_as_the_engine_did[nf4-bf16": OTHER_CASES,
    },
    "tests/lifecycle/test_run_lock.py": {
        "test_on_ranks_the_second_run_ends_with_2_too": "the file's second runs in one process",
    },
    "tests/lifecycle/test_through_gate.py": {
        "test_code_in_the_training_process_gets_nothing_out[forget_the_clip": OTHER_CASES,
    },
    "tests/models/test_quantized.py": {
        "test_the_library_is_loaded_without_asking_for_kernels_elsewhere[bitsandbytes": "tests/core/test_extras.py",
    },
    "tests/papers/test_diloco_characters.py": {
        "test_a_cell_of_the_table[50-reset": OTHER_CASES,
    },
    "tests/papers/test_fedassistant_pair.py": {
        "test_a_pair_beside_a_rank_with_both_sides_gives_the_bits_of_one_process": "test_a_server_and_two_pairs",
        "test_a_run_of_pairs_goes_on_in_pairs_or_in_one_process": "test_a_run_of_one_process_goes_on_in_pairs",
    },
    "tests/papers/test_fedassistant_rounds.py": {
        "test_any_number_of_ranks_that_own_slices_gives_the_bits_of_star[3": OTHER_CASES,
        "test_any_number_of_ranks_that_own_slices_gives_the_bits_of_star[5": OTHER_CASES,
        "test_messages_to_the_server_or_to_all_give_the_bits_of_dense_vectors[all_eight": OTHER_CASES,
        "test_messages_to_the_server_or_to_all_give_the_bits_of_dense_vectors[delta_eight": OTHER_CASES,
        "test_messages_to_the_server_or_to_all_give_the_bits_of_dense_vectors[top_forgetful": OTHER_CASES,
        "test_messages_to_the_server_or_to_all_give_the_bits_of_dense_vectors[top_half": OTHER_CASES,
        "test_messages_to_the_server_or_to_all_give_the_bits_of_dense_vectors[top_literal": OTHER_CASES,
        "test_one_process_and_many_ranks_give_the_same_bits_and_bytes[4": OTHER_CASES,
    },
    "tests/papers/test_fewfedweight.py": {
        "test_dev_scores_choose_a_personal_model[SiloAugmented": OTHER_CASES,
        "test_meta_weighting_trains_an_encoder_decoder[changes0-bart": OTHER_CASES,
        "test_meta_weighting_trains_an_encoder_decoder[changes1-t5": "the rule on bart, t5 by the plain one",
        "test_meta_weighting_trains_an_encoder_decoder[changes2-bart": OTHER_CASES,
        "test_meta_weighting_trains_an_encoder_decoder[changes2-t5": "the rule on bart, t5 by the plain one",
        "test_meta_weighting_trains_an_encoder_decoder[changes3-t5": "the rule on bart, t5 by the plain one",
    },
    "tests/papers/test_paper_adapters.py": {
        "test_text_to_sql_weighted_by_lorar[flora": OTHER_CASES,
    },
    "tests/papers/test_streaming_diloco.py": {
        "test_interrupted_and_resumed[11-1-32": OTHER_CASES,
        "test_interrupted_and_resumed[11-None-32": OTHER_CASES,
        "test_interrupted_and_resumed[23-None-32": OTHER_CASES,
        "test_interrupted_and_resumed[29-1-4": OTHER_CASES,
        "test_interrupted_and_resumed[29-None-32": OTHER_CASES,
        "test_interrupted_and_resumed[29-None-4": OTHER_CASES,
        "test_the_same_bits_on_any_number_of_ranks[2": OTHER_CASES,
    },
    "tests/planning/test_scale.py": {
        "test_predicted_bytes_headers_and_meetings_are_those_of_a_run[sums": OTHER_CASES,
    },
    "tests/privacy/record/test_held_out.py": {
        "test_an_epsilon_has_room_for_the_scores": "the file's figures by hand",
        "test_the_same_again_on_any_ranks_has_the_same_scores_and_is_no_release": "the file's runs in one process",
    },
    "tests/privacy/record/test_own_rows.py": {
        "test_a_silo_looks_at_its_units_before_it_declares_them": "tests/privacy/record/test_runs.py",
    },
    "tests/privacy/record/test_runs.py": {
        "test_a_kill_in_any_phase_costs_no_release": "tests/privacy/test_ranks.py, of clients",
        "test_both_passes_of_ditto_are_on_the_account": "tests/privacy/record/test_account.py",
        "test_messages_are_made_of_noised_vectors_and_their_ways_have_the_same_bits": "tests/compression",
    },
    "tests/privacy/record/test_shared.py": {
        "test_a_kill_costs_no_release": "tests/privacy/record/test_runs.py",
        "test_the_server_gets_the_sum_of_all_parts_to_the_bit_over_public_numbers": "tests/privacy/record/test_runs.py",
    },
    "tests/privacy/secure_sum/test_ranks.py": {
        "test_a_worker_killed_in_any_step_leaves_the_plain_sum_of_the_others[victims1": OTHER_CASES,
        "test_a_worker_killed_in_any_step_leaves_the_plain_sum_of_the_others[victims2": OTHER_CASES,
        "test_workers_send_nothing_on_other_terms_than_their_own": "tests/privacy/secure_sum/test_protocol.py",
    },
    "tests/privacy/test_attempts.py": {
        "test_an_account_counts_releases_by_their_draw_of_the_cohort": "test_seven_attempts_have_seven_draws",
        "test_attempts_on_one_cohort_would_cost_more": "test_seven_attempts_have_seven_draws",
    },
    "tests/privacy/test_kills.py": {
        "test_a_run_killed_at_any_line_of_a_repeated_round_ends_as_if_it_had_not_been[another": OTHER_CASES,
    },
    "tests/privacy/test_owner_files_on_full_disks.py": {
        "test_on_a_full_ext4_every_release_has_its_line[4096": OTHER_CASES,
    },
    "tests/privacy/test_ranks.py": {
        "test_a_kill_while_the_next_attempts_cohort_trains_costs_no_further_attempt": "test_a_kill_in_any_phase",
        "test_a_round_done_again_that_would_pass_the_budget_is_code_10": "test_the_end_of_the_budget_is_code_10",
        "test_with_a_secure_sum_each_attempt_at_a_round_opens_a_sum_of_its_own": "tests/privacy/test_attempts.py",
    },
    "tests/privacy/test_records_tell_nobody.py": {
        "test_times_would_tell": "the file's other records",
    },
    "tests/report/test_sweep_report.py": {
        "test_a_browser_shows_the_page_and_sorts_its_tables[390": OTHER_CASES,
    },
    "tests/rounds/test_async_real.py": {
        "test_a_job_that_stands_still_while_versions_are_made_and_evaluated_has_the_same_bits[False": OTHER_CASES,
        "test_a_job_whose_update_would_be_dropped_ends_before_its_next_step[after the last version": OTHER_CASES,
        "test_a_run_of_several_ranks_is_replayed_on_others[3-4": "the case `trained`, of as many ranks",
        "test_a_run_of_several_ranks_is_replayed_on_others[trained": OTHER_CASES,
        "test_what_clients_did_that_seemed_to_be_lost_does_not_count[11-0": OTHER_CASES,
        "test_what_clients_did_that_seemed_to_be_lost_does_not_count[6-99": OTHER_CASES,
    },
    "tests/rounds/test_async_rounds.py": {
        "test_a_run_that_goes_on_has_the_bits_of_one_that_was_not_interrupted[adam-3": OTHER_CASES,
        "test_a_run_that_goes_on_has_the_bits_of_one_that_was_not_interrupted[fedprox-4": OTHER_CASES,
        "test_a_run_that_goes_on_has_the_bits_of_one_that_was_not_interrupted[sixteen-3": OTHER_CASES,
        "test_a_run_that_goes_on_has_the_bits_of_one_that_was_not_interrupted[twice-3": OTHER_CASES,
    },
    "tests/rounds/test_early_sum.py": {
        "test_parts_of_a_buffer_travel_before_it_closes[previous": OTHER_CASES,
    },
    "tests/rounds/test_handed_over.py": {
        "test_a_client_that_fails_after_it_was_sent_is_taken_back[raise": OTHER_CASES,
        "test_a_fragment_travels_from_the_step_at_which_it_is_due[2-1": OTHER_CASES,
        "test_a_fragment_travels_from_the_step_at_which_it_is_due[2-2": OTHER_CASES,
        "test_a_fragment_travels_from_the_step_at_which_it_is_due[3-1": OTHER_CASES,
        "test_a_save_before_or_after_the_sending_sends_again[1": OTHER_CASES,
        "test_a_save_before_or_after_the_sending_sends_again[3": OTHER_CASES,
        "test_a_save_before_or_after_the_sending_sends_again[4": OTHER_CASES,
        "test_a_save_before_or_after_the_sending_sends_again[5": OTHER_CASES,
    },
    "tests/rounds/test_overlap.py": {
        "test_a_job_with_scores_on_the_way_ends_as_without": "test_a_run_with_scores_on_the_way, in one process",
        "test_a_run_that_dies_with_scores_on_the_way_is_resumed_to_the_same[<class 'fedtorch.rounds.eval": OTHER_CASES,
    },
    "tests/rounds/test_packing.py": {
        "test_an_interrupted_run_has_the_bits_of_one_that_was_not[5-4": OTHER_CASES,
    },
    "tests/rounds/test_save_schedule.py": {
        "test_all_ranks_save_the_rounds_that_the_server_says[ditto-False": OTHER_CASES,
        "test_all_ranks_save_the_rounds_that_the_server_says[serving-True": OTHER_CASES,
    },
    "tests/rounds/test_saving.py": {
        "test_the_files_are_those_of_one_process[scaffold": OTHER_CASES,
    },
    "tests/rounds/test_selected_by_loss.py": {
        "test_every_task_can_be_selected_by_loss[coverquery": OTHER_CASES,
        "test_every_task_can_be_selected_by_loss[feda": OTHER_CASES,
        "test_every_task_can_be_selected_by_loss[fedparsing": OTHER_CASES,
        "test_every_task_can_be_selected_by_loss[gpt_all": OTHER_CASES,
    },
    "tests/safety/test_only_numbers_travel.py": {
        "test_no_canary_leaves_its_rank[never": OTHER_CASES,
    },
    "tests/safety/test_texts_stay_in_logs.py": {
        "test_nor_where_the_log_is_on_a_full_disk": "test_one_process_shows_no_text_of_a_client",
        "test_one_process_shows_no_text_of_a_client[ignored": OTHER_CASES,
    },
    "tests/setup/test_pinned_own.py": {
        "test_disks_of_their_own_give_the_bits_of_one[a row of every label": OTHER_CASES,
        "test_disks_of_their_own_give_the_bits_of_one[folders": OTHER_CASES,
    },
    "tests/stats/test_stats_runs.py": {
        "test_a_run_that_is_killed_goes_on_with_the_same_noise_and_no_further_release[0-after": OTHER_CASES,
        "test_a_run_that_is_killed_goes_on_with_the_same_noise_and_no_further_release[1-after": OTHER_CASES,
        "test_a_run_that_is_killed_goes_on_with_the_same_noise_and_no_further_release[1-before": OTHER_CASES,
        "test_a_run_that_is_killed_goes_on_with_the_same_noise_and_no_further_release[4-before": OTHER_CASES,
        "test_the_same_numbers_on_any_ranks_and_under_masks[changes0": OTHER_CASES,
        "test_the_same_numbers_on_any_ranks_and_under_masks[changes1": OTHER_CASES,
    },
    "tests/tasks/test_adapter_folders.py": {
        "test_transformers_and_peft_find_base_and_adapter[labels-random": OTHER_CASES,
        "test_transformers_and_peft_find_base_and_adapter[llama-random": OTHER_CASES,
        "test_transformers_and_peft_find_base_and_adapter[tags-random": OTHER_CASES,
        "test_transformers_and_peft_find_base_and_adapter[texts-random": OTHER_CASES,
    },
    "tests/tasks/test_batches_of_one.py": {
        "test_continued_texts[llama-left": OTHER_CASES,
        "test_continued_texts[qwen3-right": OTHER_CASES,
    },
    "tests/tasks/test_qa.py": {
        "test_a_patched_bert_learns_the_synthetic_clients": "tests/models/test_patch.py",
    },
    "tests/tasks/test_text2sql_as_seq2seq.py": {
        "test_the_default_job_as_seq2seq_has_its_bits": "the file's other bits",
    },
    "tests/tasks/test_text_classification.py": {
        "test_plain_transformers_evaluates_the_saved_model_alike[bert": OTHER_CASES,
    },
    "tests/tasks/test_wikisql.py": {
        "test_all_groups_give_the_same_bits_on_three_ranks": "tests/invariance",
        "test_what_a_client_does_not_train_comes_back_as_it_was[fedparsing": OTHER_CASES,
        "test_without_any_dropout_the_loss_is_exactly_0_in_every_round_and_each_says_so[16-3-teacher1": OTHER_CASES,
        "test_without_any_dropout_the_loss_is_exactly_0_in_every_round_and_each_says_so[16-3-teacher2": OTHER_CASES,
        "test_without_any_dropout_the_loss_is_exactly_0_in_every_round_and_each_says_so[18-1-teacher0": OTHER_CASES,
        "test_without_any_dropout_the_loss_is_exactly_0_in_every_round_and_each_says_so[18-1-teacher1": OTHER_CASES,
    },
    "tests/test_package.py": {
        "test_a_wheel_runs_its_own_config": "test_a_wheel_finds_its_own_config",
    },
    "tests/tracking/test_track.py": {
        "test_many_names_are_never_in_memory_at_once": "the file's other names",
    },
    "tests/train/test_built_in_parts.py": {
        "test_no_rank_holds_a_whole_model_while_it_is_built[fsdp": OTHER_CASES,
        "test_weights_that_the_server_sends_give_the_bits_of_those_that_every_rank_draws[zero1": OTHER_CASES,
        "test_weights_that_the_server_sends_give_the_bits_of_those_that_every_rank_draws[zero3": OTHER_CASES,
    },
    "tests/train/test_deepspeed.py": {
        "test_a_client_that_fails_inside_a_step_leaves_nothing_behind[stage3": OTHER_CASES,
        "test_a_kept_optimiser_state_continues_as_if_never_stopped[in a new engine-stage3": OTHER_CASES,
        "test_activation_checkpointing_changes_nothing_but_memory": "tests/train/test_memory.py",
        "test_an_evaluation_between_two_clients_leaves_no_trace[stage3": OTHER_CASES,
        "test_bf16_stays_close_to_fp32_and_its_masters_are_fp32[stage3": OTHER_CASES,
        "test_two_rounds_of_two_t5_clients_equal_the_plain_engine[stage3]": "the stage with both offloaded",
    },
    "tests/train/test_deepspeed_adapters.py": {
        "test_a_worker_of_two_ranks_equals_one_plain_process": "test_deepspeed_federation.py, without adapters",
    },
    "tests/train/test_deepspeed_federation.py": {
        "test_fedavg_on_a_server_and_two_workers_equals_one_plain_process": "two ranks with different steps",
        "test_one_process_under_stage_3_evaluates_resumes_and_saves": "tests/train/test_deepspeed.py",
        "test_workers_of_two_ranks_with_different_steps_equal_one_process[two-and-one": OTHER_CASES,
    },
    "tests/train/test_deepspeed_own.py": {
        "test_a_worker_of_two_ranks_equals_one_process": "test_deepspeed_federation.py, other tasks",
    },
    "tests/train/test_deepspeed_saved.py": {
        "test_a_worker_of_two_ranks_goes_on_within_a_round": "test_saved_loop.py, one rank",
    },
    "tests/train/test_fsdp_federation.py": {
        "test_a_worker_that_was_killed_goes_on_within_a_round_and_repeats_its_bits": "tests/faults/test_under_way.py",
    },
    "tests/train/test_fsdp_on_a_device.py": {
        "test_two_devices_that_share_a_model_have_the_bits_of_two_ranks_on_the_cpu": "the file's whole run",
    },
    "tests/train/test_pretended_device.py": {
        "test_a_smoke_config_trains_on_a_device_as_on_the_cpu": "test_every_algorithm_gives_the_same_bits_on_a_device",
        "test_every_algorithm_gives_the_same_bits_on_a_device[without": OTHER_CASES,
    },
    "tests/train/test_saved_loop.py": {
        "test_deepspeed[adamw-stage1": OTHER_CASES,
        "test_deepspeed[adamw-stage1-bf16": OTHER_CASES,
        "test_deepspeed[adamw-stage2-fp16": OTHER_CASES,
        "test_deepspeed[adamw-stage3]": OTHER_CASES,
        "test_the_plain_engine[gpt2-muon": OTHER_CASES,
        "test_the_plain_engine[gpt2-sgd": OTHER_CASES,
    },
    "tests/train/test_schedules.py": {
        "test_a_run_imports_neither_peft_nor_deepspeed": "tests/core/test_extras.py",
    },
    "tests/train/test_zero_adafactor.py": {
        "test_two_rounds_of_two_clients_equal_plain_adafactor_at_every_stage": "test_deepspeed.py, with AdamW",
    },
    "tests/trainers/test_function.py": {
        "test_one_that_fails_is_named_and_the_others_go_on[adds": OTHER_CASES,
        "test_one_that_fails_is_named_and_the_others_go_on[raises": OTHER_CASES,
        "test_one_that_fails_is_named_and_the_others_go_on[resizes": OTHER_CASES,
        "test_what_it_keeps_is_there_in_the_next_round_and_after_a_resume": "its state is resumed in another",
    },
    "tests/trainers/test_over_rounds.py": {
        "test_three_rounds_of_four_steps_are_twelve_steps[constant": OTHER_CASES,
        "test_three_rounds_of_four_steps_are_twelve_steps[linear": OTHER_CASES,
    },
    "tests/trainers/test_script.py": {
        "test_a_client_whose_script_fails_is_named_and_the_others_go_on[fl.send": OTHER_CASES,
        "test_a_client_whose_script_fails_is_named_and_the_others_go_on[model = torch.nn.Linear": OTHER_CASES,
        "test_a_client_whose_script_fails_is_named_and_the_others_go_on[sys.exit(3": OTHER_CASES,
        "test_a_kept_script_that_failed_is_begun_anew_for_the_next_client[raise": OTHER_CASES,
        "test_a_module_beside_the_script_is_as_new_for_every_client": "test_modules_of_one_name_beside_two_scripts",
        "test_a_script_may_go_to_its_own_folder": "test_a_script_finds_the_rows_of_the_config_wherever_it_goes",
        "test_a_script_that_sends_whatever_happens_is_begun_like_any_other[finally": OTHER_CASES,
        "test_an_audit_of_a_script_says_why_there_is_none": "tests/audit",
    },
    "tests/trainers/test_sft.py": {
        "test_twenty_rounds_leave_memory_attributes_and_disk_as_they_were": "tests/trainers/test_hugging_face.py",
    },
}
"""File -> how a test's name begins there -> what holds the same in the meantime."""


def is_slow(nodeid: str) -> bool:
    """Does this test wait for `make slow`?"""
    file, _, name = nodeid.partition("::")
    return name.startswith(tuple(SLOW.get(file, ())))


def stale(nodeids: Iterable[str]) -> list[str]:
    """Entries of SLOW that are none of these tests, in files that some of these are of."""
    found: dict[str, list[str]] = {}
    for nodeid in nodeids:
        file, _, name = nodeid.partition("::")
        found.setdefault(file, []).append(name)
    return [
        f"{file}::{start}"
        for file, starts in SLOW.items()
        for start in starts
        if file in found and not any(name.startswith(start) for name in found[file])
    ]
