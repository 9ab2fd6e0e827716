#pragma once

#include <string>
#include <utility>
#include <vector>

#include "page/chart.hpp"
#include "page/run.hpp"

/// The sections of a page. HTML is empty if a run lacks the data.
namespace cifar_mpi::page {

/// The curves of metrics.jsonl: for one run, figures of related quantities; for several runs, a figure for
/// each quantity with a line for each run.
std::vector<Chart> curves(const std::vector<Run>& runs);

/// The position of a step of a run on all axes.
AxisValues place_of(const Run& run, double step);

/// Starts, resumes, stops, faults and ends of a run, as marks on the axes of its curves: one for each step
/// with an event, even if only the next start or the exit record shows it.
std::vector<Mark> marks_of(const Run& run);

/// The same as a table of a page, with times and ranks; empty without events.
std::string events_html(const std::vector<Run>& runs);

/// The filters of the first convolution, of the averaged weights.
std::string filters_html(const Run& run);

/// Misclassified test images.
std::string wrong_images_html(const Run& run);

/// Training images after augmentation, as the network reads them.
std::string input_images_html(const Run& run);

/// The confusion matrix.
std::string confusion_html(const Run& run);

/// The utilization of the ranks of a run: the lines of report::verdict; empty if the run has no timeline.
/// `baseline` may be null.
std::vector<std::string> verdict_of(const Run& run, const report::Timeline* baseline);

/// The same for a page: the sentence, and a table of the numbers.
std::string verdict_html(const std::vector<std::string>& lines);

/// Where the time of a step goes on each rank, as bars and as a table, and the time of each task over the ranks.
std::string budget_html(const Run& run);

using Facts = std::vector<std::pair<std::string, std::string>>;  ///< a name and a sentence

/// Progress, accuracy and speed; the first part of the text and of the page.
Facts key_facts(const Run& run);

/// Of the last start; 0: unknown.
int rank_count(const Run& run);

/// A table of runs: the options in which they differ, and their results. Empty unless there are several.
struct Comparison {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;  ///< as long as the head
  std::size_t more_options = 0;                ///< that differ, too
};
Comparison compare(const std::vector<Run>& runs);
std::vector<std::string> comparison_lines(const Comparison& table);
std::string comparison_html(const Comparison& table);

/// The most important facts for tiles: a name and a figure.
Facts tiles_of(const Run& run);

/// Model, ranks and machine on one line; empty if they are unknown.
std::string headline(const Run& run);

/// The machine, and the provenance of the newest checkpoint.
Facts provenance_facts(const Run& run);

/// The existing files of a run directory, each with the command that opens it.
Facts files_of(const Run& run, const std::string& page);

}  // namespace cifar_mpi::page
